"""Emulated instances on real ports, in this process: for tests, demos and whole fleets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType

import uvicorn
from pydantic import SecretStr

from hexprefect.errors import CallerMistake
from hexprefect.instances.emulator.app import ConnectionBroken, EmulatorApp
from hexprefect.instances.emulator.blocks import BLOCK_TOKENS
from hexprefect.instances.emulator.content import Content, Filler
from hexprefect.instances.emulator.engine import Engine, EngineOptions
from hexprefect.instances.emulator.fault import Fault
from hexprefect.instances.emulator.instance import EmulatedInstance
from hexprefect.instances.emulator.metrics import InstanceMetrics
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.profiles import default_profile
from hexprefect.scheduling.cost import Profile

_BACKLOG = 4096
_DEFAULT_KV_TOKENS = 97_000
_LAST_ANSWER_S = 0.05


class Emulator:
    """One emulated vLLM instance on a port of 127.0.0.1, as an async context manager.

    ```python
    async with Emulator("a100", time_scale=20) as endpoint:
        completion = await client.complete(endpoint, prompt, timeout_s=60)
    ```

    Args:
        profile: a hardware name (see `hexprefect.instances.profiles`) or a profile of one's own.
        port: a fixed port, or 0 to let the system choose a free one.
        name: the instance's name; by default the profile's.
        time_scale: how many times faster than life it is.
        kv_tokens: KV memory in tokens; by default the profile's.
        max_model_len: tokens that one sequence may have; the KV memory at most.
        content: what it says; filler of the length asked for by default.
        options: the engine's.
        api_key: required of every request, where set.
        fault: what is wrong with it from the start.
        max_num_queued_reqs: requests, running and waiting, beyond which new ones get a 503.
        seed: of the choice which requests a fault strikes.
    """

    def __init__(
        self,
        profile: str | Profile = "a100",
        *,
        port: int = 0,
        name: str | None = None,
        model: str = "emulated",
        time_scale: float = 1.0,
        kv_tokens: int | None = None,
        max_model_len: int = 32_768,
        content: Content | None = None,
        options: EngineOptions | None = None,
        api_key: str | None = None,
        fault: Fault | str | None = None,
        max_num_queued_reqs: int | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 < time_scale < math.inf:
            raise CallerMistake(
                f"The time scale {time_scale} is no number above zero.",
                remedy="Write 20 for twenty times faster than life.",
            )
        self.profile = default_profile(profile) if isinstance(profile, str) else profile
        self.name = name or self.profile.name
        self._port = port
        self._model = model
        self._time_scale = time_scale
        memory = kv_tokens or self.profile.kv_tokens or _DEFAULT_KV_TOKENS
        # In whole blocks: a sequence as long as is allowed must fit.
        self._kv_tokens = max(1, memory // BLOCK_TOKENS) * BLOCK_TOKENS
        self._max_model_len = min(max_model_len, self._kv_tokens)
        self._content = content or Filler()
        self._options = options or EngineOptions()
        self._api_key = api_key and api_key.strip()
        self._fault = Fault.parse(fault) if isinstance(fault, str) else fault
        self._max_num_queued_reqs = max_num_queued_reqs
        self._seed = seed
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._app: EmulatorApp | None = None

    @classmethod
    def serve(
        cls, profile: str | Profile = "a100", *, port: int = 0, **options: object
    ) -> Emulator:
        """As the constructor: `async with Emulator.serve(profile=…, port=0) as endpoint`."""
        return cls(profile, port=port, **options)  # type: ignore[arg-type]

    @property
    def instance(self) -> EmulatedInstance:
        """What runs behind the routes, while it serves."""
        assert self._app is not None, "the emulator does not run"
        return self._app.instance

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, while it serves."""
        return Endpoint(
            name=self.name,
            url=f"http://127.0.0.1:{self._port}",
            model=self._model,
            api_key=SecretStr(self._api_key) if self._api_key else None,
            speaks="vllm",
        )

    async def start(self) -> Endpoint:
        """Listen.

        Raises:
            CallerMistake: the port is taken.
        """
        engine = Engine(self.profile, kv_tokens=self._kv_tokens, options=self._options)
        metrics = InstanceMetrics(engine, self._model)
        instance = EmulatedInstance(
            engine, self._content, metrics, time_scale=self._time_scale, seed=self._seed
        )
        self._app = EmulatorApp(
            instance,
            model=self._model,
            max_model_len=self._max_model_len,
            max_num_queued_reqs=self._max_num_queued_reqs,
            api_key=self._api_key,
            on_fault=self.set_fault,
        )
        await self._listen()
        if self._fault is not None:
            await self.set_fault(self._fault)
        return self.endpoint

    async def stop(self) -> None:
        """Break every connection and stop listening. Safe to call twice."""
        if self._app is not None:
            self._app.instance.close()
        await self._stop_listening()

    async def set_fault(self, fault: Fault | str | None) -> None:
        """Break the instance in some way, or mend it with None."""
        wanted = Fault.parse(fault) if isinstance(fault, str) else fault
        if wanted is not None and wanted.kind == "refuse":
            if self._server is not None:
                self._server.close_listeners()
                # Not at once: this may be asked for over one of these very connections.
                asyncio.get_running_loop().call_later(
                    _LAST_ANSWER_S, self._server.break_connections
                )
        elif self._server is not None and not self._server.listening:
            await self._stop_listening()
            await self._listen()
        self.instance.set_fault(wanted)

    async def __aenter__(self) -> Endpoint:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _listen(self) -> None:
        assert self._app is not None
        # Without the protocol's number asyncio leaves Nagle's algorithm on: 40 ms an answer.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self._port))
        except (OSError, OverflowError) as taken:
            listener.close()
            raise CallerMistake(
                f"Port {self._port} cannot be listened on: "
                f"{getattr(taken, 'strerror', None) or taken}.",
                remedy="Choose another, or 0 for any free one.",
            ) from taken
        self._port = listener.getsockname()[1]
        server = self._server = _Server(
            uvicorn.Config(
                self._app.asgi,
                lifespan="off",
                log_config=None,
                access_log=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=1,
            )
        )
        _quieten()
        self._serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.001)

    async def _stop_listening(self) -> None:
        server, serving = self._server, self._serving
        self._server = self._serving = None
        if server is not None and serving is not None:
            # First: a dead server does not answer new connections for a moment longer.
            server.close_listeners()
            server.break_connections()
            server.should_exit = server.force_exit = True
            await serving


class _Server(uvicorn.Server):
    """uvicorn, as a guest in somebody else's process."""

    @property
    def listening(self) -> bool:
        return any(listener.is_serving() for listener in self.servers)

    def close_listeners(self) -> None:
        for listener in self.servers:
            listener.close()

    def break_connections(self) -> None:
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to this server."""
        yield


class _WithoutEmulatedDeaths(logging.Filter):
    """uvicorn logs what an app raises; what is raised on purpose is no news."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], ConnectionBroken))


def _quieten() -> None:
    logger = logging.getLogger("uvicorn.error")
    if not any(isinstance(present, _WithoutEmulatedDeaths) for present in logger.filters):
        logger.addFilter(_WithoutEmulatedDeaths())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


@asynccontextmanager
async def serve_fleet(
    cluster: Mapping[str, int], **options: object
) -> AsyncIterator[dict[str, Emulator]]:
    """A whole fleet on free ports: `{"a100": 2, "l40s": 1}` → `a100-0`, `a100-1`, `l40s-0`.

    Args:
        cluster: instances per hardware name.
        options: of every `Emulator`.
    """
    fleet: dict[str, Emulator] = {}
    async with AsyncExitStack() as stack:
        for hardware, count in cluster.items():
            for number in range(count):
                name = f"{hardware}-{number}"
                emulator = Emulator(hardware, name=name, **options)  # type: ignore[arg-type]
                await stack.enter_async_context(emulator)
                fleet[name] = emulator
        yield fleet
