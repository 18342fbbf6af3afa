"""One launched vLLM server: started, waited for, watched, and ended with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceError, InstanceStartFailed
from hexprefect.instances.launched.command import VllmOptions
from hexprefect.instances.launched.log import (
    StartProgress,
    last_lines,
    read_tail,
    start_progress,
)

GUARDIAN = Path(__file__).with_name("guardian.py")

_LOOK_EVERY_S = 0.25
_TELL_EVERY_S = 5.0
_GUARDIAN_LIMIT_S = 15.0
"""Beyond the ten seconds that the guardian itself takes at most."""


class ServerEnded(InstanceError):
    """A launched server ended, though nobody had asked it to."""

    default_kind = "died"


class VllmServer:
    """A vLLM server in processes of its own, as an async context manager.

    ```python
    async with VllmServer("a100-1", VllmOptions(model="Qwen/…", port=8000), log=path) as server:
        completion = await client.complete(server.endpoint, prompt, timeout_s=60)
    ```

    However this process ends, none of the server's processes stays (see `guardian`).

    Args:
        name: the instance's name.
        options: what to serve, and how.
        log: file for what the server says; an old one is kept beside it as `….previous`.
        start_timeout_s: seconds until it must answer. Loading large weights takes minutes.
        on_progress: is told how far the start has come, every few seconds and at each step.
    """

    def __init__(
        self,
        name: str,
        options: VllmOptions,
        *,
        log: Path,
        start_timeout_s: float = 1800.0,
        on_progress: Callable[[StartProgress], None] | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self.log = log
        self._start_timeout_s = start_timeout_s
        self._on_progress = on_progress
        self._guardian: asyncio.subprocess.Process | None = None
        self._endpoint = Endpoint(name, options.url, options.model_name, options.api_key, "vllm")

    @property
    def endpoint(self) -> Endpoint:
        """Where and how others reach it."""
        return self._endpoint

    @property
    def pid(self) -> int:
        """Id of the guardian, which is also that of the server's process group.

        Raises:
            InstanceStartFailed: it is not running.
        """
        if self._guardian is None:
            raise InstanceStartFailed("is not running.", instance=self.name)
        return self._guardian.pid

    async def start(self) -> Endpoint:
        """Start the server and wait until it answers.

        Raises:
            InstanceStartFailed: it cannot be started, its port is taken, it ended, or it did not
                answer in time; the message has the last lines of its log.
        """
        executable = self._find_executable()
        await asyncio.to_thread(self._check_port)
        await asyncio.to_thread(self._begin_log)
        command = self.options.command()
        with self.log.open("ab") as log:
            self._guardian = await asyncio.create_subprocess_exec(
                # Isolated, and without site packages: it needs neither, and starts at once.
                *(sys.executable, "-I", "-S", str(GUARDIAN), executable, *command[1:]),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.options.process_environment(os.environ),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._wait_until_it_answers(self._guardian)
        except TimeoutError:
            failure = self._start_failed(f"did not answer within {self._start_timeout_s:.0f} s")
            await self.kill()
            raise failure from None
        except BaseException:
            await self.kill()
            raise
        return self.endpoint

    async def ended(self) -> ServerEnded:
        """Wait until the server ends by itself; what is to be said about it."""
        guardian = self._running()
        status = await guardian.wait()
        await self.kill()
        return ServerEnded(
            f"vLLM ended with status {status}. Its last words:\n{self.last_lines()}",
            instance=self.name,
            remedy=f"See {self.log}.",
        )

    async def stop(self, *, grace_s: float) -> None:
        """Ask the server to finish, and kill what is left of it after `grace_s` seconds."""
        guardian = self._guardian
        if guardian is not None and guardian.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                guardian.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await guardian.wait()
            except TimeoutError:
                pass
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self.kill()))
                raise
        await self.kill()

    async def kill(self) -> None:
        """End every process of the server now. Safe to call twice."""
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            return
        if guardian.stdin is not None:
            # The guardian kills all its descendants when this closes, and then ends.
            guardian.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(guardian.wait()), _GUARDIAN_LIMIT_S)
        # Nobody is left here, unless the guardian itself was killed.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(guardian.pid, signal.SIGKILL)
        await guardian.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Shielded: whoever is cancelled while stopping still stops everything.
        await asyncio.shield(asyncio.ensure_future(self.kill()))

    def last_lines(self) -> str:
        """The end of its log, without its key."""
        return last_lines(self.endpoint.redact(read_tail(self.log)))

    async def _wait_until_it_answers(self, guardian: asyncio.subprocess.Process) -> None:
        started = time.monotonic()
        told: StartProgress | None = None
        async with InstanceClient() as client:
            while True:
                if guardian.returncode is not None:
                    raise self._start_failed(f"ended with status {guardian.returncode}")
                if (await client.health(self.endpoint, timeout_s=2.0)).healthy:
                    return
                log = await asyncio.to_thread(read_tail, self.log)
                progress = start_progress(log, elapsed_s=time.monotonic() - started)
                if told is None or self._is_news(progress, told):
                    told = progress
                    if self._on_progress is not None:
                        self._on_progress(progress)
                await asyncio.sleep(_LOOK_EVERY_S)

    @staticmethod
    def _is_news(progress: StartProgress, told: StartProgress) -> bool:
        return progress.doing != told.doing or progress.elapsed_s - told.elapsed_s >= _TELL_EVERY_S

    def _find_executable(self) -> str:
        """vLLM's command: a path, or beside this Python (its environment may not be active)."""
        wanted = self.options.executable
        found = shutil.which(wanted) or shutil.which(wanted, path=Path(sys.executable).parent)
        if found is None:
            raise InstanceStartFailed(
                f"there is no command {wanted!r} here.",
                instance=self.name,
                remedy="Install vLLM with `pip install hexprefect[vllm]`, or set the pool's "
                "variable `launch.executable` to the path of its command.",
            )
        return found

    def _check_port(self) -> None:
        """Loading weights takes minutes: what would fail after them is found before."""
        try:
            family, _, _, _, address = socket.getaddrinfo(
                self.options.host or "0.0.0.0",
                self.options.port,
                type=socket.SOCK_STREAM,
            )[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as taken:
            raise InstanceStartFailed(
                f"{self.options.host}:{self.options.port} cannot be listened on: "
                f"{taken.strerror or taken}.",
                instance=self.name,
                remedy="End what listens there, or change the pool's variable `launch.port`.",
            ) from taken

    def _begin_log(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_name(f"{self.log.name}.previous"))

    def _start_failed(self, what: str) -> InstanceStartFailed:
        said = self.last_lines()
        return InstanceStartFailed(
            f"vLLM {what}." + (f" Its last words:\n{said}" if said else ""),
            instance=self.name,
            remedy=f"See {self.log}.",
        )

    def _running(self) -> asyncio.subprocess.Process:
        if self._guardian is None:
            raise InstanceStartFailed("is not running.", instance=self.name)
        return self._guardian
