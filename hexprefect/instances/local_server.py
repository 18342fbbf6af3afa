"""A llama.cpp server on this machine's CPUs: a real model instance that needs no GPU.

`python -m hexprefect.instances.local_server --model PATH` serves until SIGTERM and prints one JSON
line, `{"url": …, "model": …}`, once it can answer. `LocalServer` launches that and ends it.

Measured: two servers with 1 and 2 threads differ in speed as two kinds of GPU do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, NoReturn

from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceStartFailed

_PARENT_CHECK_S = 0.5
_LOG_LINES = 12
_PROMPT_CACHE_MIB = 512
_ERRORS_ONLY = 1


class LocalServer:
    """A local llama.cpp server in a process of its own, as an async context manager.

    ```python
    async with LocalServer("local-1", model_path, threads=1) as endpoint:
        completion = await client.complete(endpoint, prompt, timeout_s=60)
    ```

    The server leaves with this process, however that ends.

    Args:
        name: the instance's name.
        model_path: a GGUF file, see `hexprefect.instances.local_model`.
        threads: CPU threads for prefill and decoding.
        slots: requests served at once; more wait inside the server, first come, first served.
        context_tokens: tokens (input and output) that each request may have.
        model_name: the name to serve under; by default the file's.
        port: a fixed port, or 0 to let the system choose a free one.
        start_timeout_s: seconds to wait until it answers.
    """

    def __init__(
        self,
        name: str,
        model_path: str | Path,
        *,
        threads: int = 1,
        slots: int = 1,
        context_tokens: int = 4096,
        model_name: str | None = None,
        port: int = 0,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.name = name
        self._command = [
            *(sys.executable, "-m", "hexprefect.instances.local_server"),
            *("--model", str(model_path), "--name", model_name or Path(model_path).stem),
            *("--port", str(port), "--threads", str(threads), "--slots", str(slots)),
            *("--context", str(context_tokens), "--with-parent", str(os.getpid())),
        ]
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id, which is also its process group.

        Raises:
            InstanceStartFailed: it is not running.
        """
        if self._process is None:
            raise InstanceStartFailed("is not running.", instance=self.name)
        return self._process.pid

    async def start(self) -> Endpoint:
        """Launch the server and wait until it answers.

        Raises:
            InstanceStartFailed: it ended or stayed silent; the message has its last log lines.
        """
        # The log needs no reader, as a pipe would: a full pipe stops the server.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `stop`)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
            async with asyncio.timeout(self._start_timeout_s):
                return await self._wait_until_it_answers(self._process)
        except TimeoutError:
            failure = self._failed(f"did not answer within {self._start_timeout_s:.0f} s")
            await self.stop()
            raise failure from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self, *, grace_s: float = 3.0) -> None:
        """End the server: SIGTERM, then SIGKILL to its process group. Safe to call twice."""
        process, self._process = self._process, None
        try:
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                try:
                    async with asyncio.timeout(grace_s):
                        await process.wait()
                except (TimeoutError, asyncio.CancelledError):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
                    raise
        except TimeoutError:
            pass
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    async def wait(self) -> int:
        """Wait until the server ends by itself; returns its exit status."""
        if self._process is None:
            raise InstanceStartFailed("is not running.", instance=self.name)
        return await self._process.wait()

    async def __aenter__(self) -> Endpoint:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _wait_until_it_answers(self, process: asyncio.subprocess.Process) -> Endpoint:
        assert process.stdout is not None
        announcement = await process.stdout.readline()
        try:
            announced = json.loads(announcement)
        except ValueError:
            await process.wait()
            raise self._failed(f"ended with status {process.returncode}") from None
        endpoint = Endpoint(
            name=self.name, url=announced["url"], model=announced["model"], speaks="llama.cpp"
        )
        async with InstanceClient() as client:
            while not (await client.health(endpoint)).healthy:
                if process.returncode is not None:
                    raise self._failed(f"ended with status {process.returncode}")
                await asyncio.sleep(0.05)
        return endpoint

    def _failed(self, what: str) -> InstanceStartFailed:
        log = self._last_log_lines()
        return InstanceStartFailed(
            f"the local server {what}." + (f" Its last words:\n{log}" if log else ""),
            instance=self.name,
            remedy="Check the model file, the port and the free memory.",
        )

    def _last_log_lines(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def serve(
    model_path: Path, *, name: str, port: int, threads: int, slots: int, context_tokens: int
) -> NoReturn:
    """Serve `model_path` in this process until SIGTERM or SIGINT.

    Raises:
        InstanceStartFailed: the llama.cpp package is missing, or it cannot load or listen.
    """
    server = _llama_server(
        model_path, name=name, port=port, threads=threads, slots=slots, context=context_tokens
    )

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        # llama.cpp's threads do not end in order while requests run; the system ends them all.
        os._exit(0)

    # Only now: while the model loads, Python cannot run a handler, but the default still works.
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    print(json.dumps({"url": server.listening_address, "model": name}), flush=True)
    while True:
        signal.pause()


def _llama_server(
    model_path: Path, *, name: str, port: int, threads: int, slots: int, context: int
) -> Any:
    # Threads that wait for each other sleep instead of spinning: on a busy machine two spinning
    # threads decoded 0.6 tokens a second where two sleeping ones decoded 4.8. Read when it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as missing:
        raise InstanceStartFailed(
            "the llama.cpp server is not installed.",
            instance=name,
            remedy="Install it with `pip install hexprefect[local]`.",
        ) from missing
    if not model_path.is_file():
        raise InstanceStartFailed(f"there is no model file {model_path}.", instance=name)
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path)
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    # llama.cpp divides its context among the slots.
    params.n_ctx = context * slots
    params.n_parallel = slots
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.cache_prompt = True
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.endpoint_metrics = True
    params.ui = False
    params.verbosity = _ERRORS_ONLY
    # Each waiting request holds one of these threads; /health must still get one.
    params.n_threads_http = slots + 32
    try:
        return xllamacpp.Server(params)
    except Exception as failure:
        raise InstanceStartFailed(
            f"llama.cpp cannot serve {model_path} on port {port}: {failure}.", instance=name
        ) from failure


def _leave_with(parent: int) -> None:
    """End this process when `parent` has ended. Runs in a thread."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a GGUF model on llama.cpp's OpenAI routes until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m hexprefect.instances.local_server", description=main.__doc__
    )
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--name", help="the model's name in requests; default: the file's")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--slots", type=int, default=1, help="requests at once (default 1)")
    parser.add_argument("--context", type=int, default=4096, help="tokens a request (default 4096)")
    parser.add_argument(
        "--with-parent",
        type=int,
        nargs="?",
        const=os.getppid(),
        metavar="PID",
        help="end when the parent process has ended",
    )
    options = parser.parse_args(arguments)
    if options.with_parent is not None:
        threading.Thread(target=_leave_with, args=(options.with_parent,), daemon=True).start()
    try:
        serve(
            options.model,
            name=options.name or options.model.stem,
            port=options.port,
            threads=options.threads,
            slots=options.slots,
            context_tokens=options.context,
        )
    except InstanceStartFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
