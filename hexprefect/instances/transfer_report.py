"""How far a download is: a bar on a terminal, a line now and then elsewhere. On standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_LINE_EVERY_S = 5.0
_MIB = 1 << 20


class TransferReport(Protocol):
    """Receives the news of one download; `advance` may be called from any thread."""

    def source(self, name: str) -> None:
        """Bytes now come from `name`, from the first one on."""
        ...

    def advance(self, count: int) -> None:
        """`count` more bytes have arrived."""
        ...

    def say(self, text: str) -> None:
        """Something else worth telling."""
        ...


@contextmanager
def transfer_report(label: str, total: int) -> Iterator[TransferReport]:
    """A report of the download of `label`, of `total` bytes, that suits standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(label, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, progress.add_task(label, total=total), label)


class _Bar:
    def __init__(self, progress: Progress, task: TaskID, label: str) -> None:
        self._progress, self._task, self._label = progress, task, label

    def source(self, name: str) -> None:
        self._progress.reset(self._task, description=f"{self._label} from the {name}")

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=f"{self._label}: {text}")


class _Lines:
    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._done = 0
        self._last_line = time.monotonic()
        self._lock = threading.Lock()

    def source(self, name: str) -> None:
        self._done = 0
        self.say(f"fetching from the {name}")

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            finished = self._done >= self._total
            if not finished and time.monotonic() - self._last_line < _LINE_EVERY_S:
                return
            self._last_line = time.monotonic()
            done = self._done
        self.say(
            f"{done // _MIB} of {self._total // _MIB} MiB ({100 * done // max(1, self._total)} %)"
        )

    def say(self, text: str) -> None:
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)
