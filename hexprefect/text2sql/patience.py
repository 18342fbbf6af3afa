"""How long reading a database's catalogue may take: ended in the database, not only waited for.

A view is a statement that somebody wrote, and may run for ever. A thread cannot be ended from
outside, but what it waits for can: a watcher interrupts the connection when a piece of work is late
or when nobody waits for the whole any more.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

_LOOKS_EVERY_S = 0.05


class ReadingStopped(Exception):
    """Nobody waits for the catalogue any more."""


class Patience:
    """Time for pieces of work, each at most `piece_s`, all together about `whole_s`.

    When the whole is spent, a piece still has `least_s`: what is quick is read however long the
    others took.

    Args:
        piece_s: seconds of one piece.
        whole_s: seconds of all pieces together.
        least_s: seconds of a piece that comes late.
        stop: set by whoever does not wait any more.
    """

    def __init__(
        self,
        *,
        piece_s: float = 10.0,
        whole_s: float = 60.0,
        least_s: float = 0.5,
        stop: threading.Event | None = None,
    ) -> None:
        self.stop = stop or threading.Event()
        self._piece_s = piece_s
        self._left_s = whole_s
        self._least_s = least_s

    def check(self) -> None:
        """Go on only while somebody waits.

        Raises:
            ReadingStopped: nobody does.
        """
        if self.stop.is_set():
            raise ReadingStopped

    @contextlib.contextmanager
    def piece(self, watcher: Watcher) -> Iterator[None]:
        """A piece of work that `watcher` interrupts when it is late."""
        self.check()
        started = time.monotonic()
        try:
            with watcher.until(started + max(self._least_s, min(self._piece_s, self._left_s))):
                yield
        finally:
            self._left_s -= time.monotonic() - started


class Watcher:
    """Calls `interrupt` while the deadline is over or `stop` is set. Use it as a context manager.

    Args:
        interrupt: stops what runs at that moment, and does nothing when nothing runs; a failure of
            it is tried again.
        stop: as of `Patience`.
    """

    def __init__(self, interrupt: Callable[[], object], stop: threading.Event) -> None:
        self._interrupt = interrupt
        self._stop = stop
        self._deadline = math.inf
        self._ended = threading.Event()
        # Held while interrupting, so that the piece after a late one is not hit.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Interrupt what runs within this once `deadline`, in monotonic seconds, is over."""
        with self._lock:
            self._deadline = deadline
        try:
            yield
        finally:
            with self._lock:
                self._deadline = math.inf

    def _watch(self) -> None:
        while not self._ended.wait(_LOOKS_EVERY_S):
            with self._lock, contextlib.suppress(Exception):
                if self._stop.is_set() or time.monotonic() > self._deadline:
                    self._interrupt()
