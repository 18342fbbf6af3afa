"""Real servers on free ports, and processes that share a queue and send requests to them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.emulator import Emulator, EngineOptions
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, Store, check_laws
from hexprefect.store.fleet import enter_instance
from hexprefect.store.views import instance_views, request_counts

CHILD = Path(__file__).with_name("child_process.py")

QUICK = Profile("quick", fixed_s=0.02, input_s_per_token=0.0, output_s_per_token=0.001)

OPTIONS = QueueOptions(
    lease_s=20.0,
    beat_every_s=1.0,
    outage_patience_s=2.0,
    shortest_timeout_s=10.0,
    probe_every_s=0.2,
)


@dataclass
class Fleet:
    """Emulated instances that are entered in the store."""

    store: Store
    stack: AsyncExitStack

    async def start(
        self, name: str, profile: Profile = QUICK, *, slots: int = 1, **options: Any
    ) -> Emulator:
        emulator = Emulator(
            profile, name=name, options=EngineOptions(max_num_seqs=slots), **options
        )
        await self.stack.enter_async_context(emulator)
        self.enter(emulator, slots)
        return emulator

    def enter(self, emulator: Emulator, slots: int) -> None:
        spec = InstanceSpec(
            name=emulator.name,
            url=emulator.endpoint.url,
            profile=emulator.profile,
            slots=slots,
            model=emulator.endpoint.model,
            speaks="vllm",
        )
        self.store.transact(lambda tx: enter_instance(tx, spec))

    def counts(self) -> dict[str, int]:
        return {state: n for state, n in self.store.read(request_counts).items() if n}

    def occupied(self, name: str) -> int:
        return self.store.read(instance_views)[name].occupied

    def state(self, name: str) -> str:
        return self.store.read(instance_views)[name].state

    def violations(self) -> list[Any]:
        now = self.store.now()
        return self.store.read(lambda connection: check_laws(connection, now=now))

    def idle(self) -> bool:
        return all(
            (view.backlog_s, view.waiting, view.occupied) == (0, 0, 0)
            for view in self.store.read(instance_views).values()
        )


@pytest.fixture
async def fleet(store_url: str, open_store: Callable[..., Store]) -> AsyncIterator[Fleet]:
    """The laws hold, and every backlog is 0, when the test is over."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(open_store(store_url), stack)
        yield fleet
        assert fleet.violations() == []


@pytest.fixture
async def new_queue(store_url: str) -> AsyncIterator[Callable[..., Awaitable[SharedQueue]]]:
    """A further process's part in the queue."""
    async with AsyncExitStack() as stack:

        async def new(options: QueueOptions = OPTIONS) -> SharedQueue:
            return await stack.enter_async_context(SharedQueue(store_url, options=options))

        yield new


@pytest.fixture
async def queue(fleet: Fleet, new_queue: Callable[..., Awaitable[SharedQueue]]) -> SharedQueue:
    return await new_queue()


@pytest.fixture
def prompt() -> Callable[..., Prompt]:
    def make(text: str = "How many singers?", *, tokens: int = 8, **fields: Any) -> Prompt:
        return Prompt(
            stage="ask", messages=(Message("user", text),), max_output_tokens=tokens, **fields
        )

    return make


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """Wait until something is so, and fail when it is not in time."""

    async def wait(so: Callable[[], bool], *, within_s: float = 20.0) -> None:
        until = time.monotonic() + within_s
        while not await asyncio.to_thread(so):
            assert time.monotonic() < until, "it never came about"
            await asyncio.sleep(0.02)

    return wait


@dataclass
class Child:
    """Another process of the queue, which says on its output what it does."""

    process: asyncio.subprocess.Process

    async def says(self, word: str, *, within_s: float = 60.0) -> str:
        """The rest of the next line that begins with `word`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(word):
                    return line.removeprefix(word).strip()
        raise AssertionError(f"it ended without saying {word!r}")

    def send(self, signal: int) -> None:
        self.process.send_signal(signal)


@pytest.fixture
async def start_child(store_url: str) -> AsyncIterator[Callable[..., Awaitable[Child]]]:
    children: list[Child] = []

    async def start(*, requests: int = 2, lease_s: float = 1.5, slo_s: float = 60.0) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            store_url,
            str(requests),
            str(lease_s),
            str(slo_s),
            stdout=asyncio.subprocess.PIPE,
        )
        child = Child(process)
        children.append(child)
        await child.says("joined")
        return child

    yield start
    for child in children:
        if child.process.returncode is None:
            child.process.kill()
        await child.process.wait()
