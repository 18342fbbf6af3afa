"""Child processes that never outlive this one: each in a group of its own, ended by its id."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hexprefect.errors import HexprefectError

LAST_LINES = 15
_PR_SET_PDEATHSIG = 1


class ChildFailed(HexprefectError):
    """A process of the stack ended, or did not get ready."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """One process with its log in a file, as an async context manager.

    Args:
        name: for messages, and of the log file.
        command: the program and its arguments.
        environment: of the process, complete.
        log_folder: where `NAME.log` is written.
        grace_s: seconds between SIGTERM and SIGKILL when it is ended.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_folder: Path,
        grace_s: float = 10.0,
        working_folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log_folder / f"{name}.log"
        self._command = list(command)
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._working_folder = working_folder
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group.

        Raises:
            ChildFailed: when it does not run.
        """
        if self._process is None:
            raise ChildFailed(f"{self.name} does not run.")
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it was started and is gone."""
        return self._process is not None and self._process.returncode is not None

    async def __aenter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._working_folder,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Shielded, so that Ctrl-C while stopping still stops everything.
        await asyncio.shield(asyncio.ensure_future(self.stop()))

    async def stop(self) -> None:
        """SIGTERM to its group, and SIGKILL to what is left after the grace."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self._grace_s)
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()

    def failure(self, what: str) -> ChildFailed:
        """An error with the end of its log."""
        return ChildFailed(f"{self.name} {what}.\n{self.last_lines()}", remedy=f"See {self.log}.")

    def last_lines(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()
            return "\n".join(lines[-LAST_LINES:])
        return ""


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _die_with_parent() -> None:
    """In the child: be killed when the parent is, however that happens (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
