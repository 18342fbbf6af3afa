"""Runs one server and sees to it that nothing of it stays: `python guardian.py COMMAND …`.

vLLM's engine processes outlive its API process when that is killed, and keep the GPU's memory. This
process stands between a server and whoever launched it:

- it holds the reading end of a pipe as its standard input; when the launcher ends, however that
  happens, the pipe closes and this process gets another parent, and it kills the whole server;
- when the server's first process ends, the others are killed, too, and its status is passed on;
- SIGTERM is passed on to the server's first process, which is how vLLM is asked to finish.

It imports nothing but the standard library: it is to be small, to start at once, and to live longer
than everything that may go wrong in the launcher. Processes that leave the group are found because
this process adopts orphans (`PR_SET_CHILD_SUBREAPER`); where that does not exist, the group is all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.1
_KILL_LIMIT_S = 10.0
_NOT_STARTED = 127


def main(command: Sequence[str]) -> int:
    """Run `command` until it ends or standard input closes; its exit status as a shell gives it."""
    launcher = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server: subprocess.Popen[bytes] | None = None

    def pass_on(signum: int, frame: FrameType | None) -> None:
        if server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGTERM)

    # A handler, not SIG_IGN: what is ignored stays ignored in the server.
    signal.signal(signal.SIGTERM, pass_on)
    try:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guardian if _linux() else None
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}.", file=sys.stderr, flush=True)
        return _NOT_STARTED
    try:
        _wait(server, launcher)
        return _shell_status(server.poll())
    finally:
        kill_descendants()


def kill_descendants() -> None:
    """Kill every process that descends from this one, and wait for them, for some seconds."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def descendants(ancestor: int) -> list[int]:
    """Ids of all processes below `ancestor`, from `/proc`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; the parent is the second word after it.
            status = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(status[1]), []).append(int(folder.name))
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _wait(server: subprocess.Popen[bytes], launcher: int) -> None:
    """Return when the server has ended, or when the launcher has."""
    while server.poll() is None and os.getppid() == launcher:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _LOOK_EVERY_S)
        if readable and not os.read(sys.stdin.fileno(), 64):
            return


def _shell_status(status: int | None) -> int:
    if status is None:
        return 128 + signal.SIGKILL
    return 128 - status if status < 0 else status


def _die_with_guardian() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _linux():
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _linux() -> bool:
    return sys.platform == "linux"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
