"""Others send requests to the same servers: their load is seen, weighed and given room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.emulator import Emulator
from hexprefect.queue import QueuedRequest, QueueOptions, SharedQueue
from hexprefect.queue.foreign_load import ForeignLoad
from hexprefect.scheduling import Decision, Profile, RequestSize
from hexprefect.store import InstanceSpec, InstanceView
from hexprefect.store.fleet import enter_instance
from hexprefect.store.views import decisions_of, instance_views

LONG = Profile("long", fixed_s=0.01, input_s_per_token=0.0, output_s_per_token=0.05)
"""Its requests last for minutes: what runs when a test looks still runs when it has looked."""

SIZE = RequestSize(100, 10.0)


@pytest.fixture
async def look(queue: SharedQueue) -> Callable[[], Awaitable[Any]]:
    """Look at every instance, whoever has looked before; nobody looks by himself meanwhile."""
    await queue.foreign_load.stop()
    watcher = ForeignLoad(queue.store, queue.client, queue.directory, look_every_s=0.0)
    return watcher.look


@asynccontextmanager
async def others_use(
    emulator: Emulator, number: int, eventually: Callable[..., Awaitable[None]]
) -> AsyncIterator[None]:
    """So many requests of somebody who knows nothing of us."""
    engine = emulator.instance.engine
    already = engine.running + engine.waiting
    running = min(already + number, engine.options.max_num_seqs)
    prompt = Prompt(stage="", messages=(Message("user", "hello"),), max_output_tokens=20_000)
    async with InstanceClient() as client:
        sent = [
            asyncio.ensure_future(client.complete(emulator.endpoint, prompt, timeout_s=120.0))
            for _ in range(number)
        ]
        try:
            await eventually(
                lambda: (
                    engine.running == running
                    and engine.running + engine.waiting == already + number
                )
            )
            yield
        finally:
            for request in sent:
                request.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
    await eventually(lambda: engine.running + engine.waiting <= already)


async def see(look: Callable[[], Awaitable[Any]], wanted: dict[str, tuple[int, int]]) -> None:
    """Look until that is seen: on a busy machine a server may once not tell in time."""
    until = time.monotonic() + 30.0
    while (seen := await look()) != wanted:
        assert time.monotonic() < until, f"seen was {seen}"


def view(queue: SharedQueue, name: str) -> InstanceView:
    return queue.store.read(instance_views)[name]


async def submitted(queue: SharedQueue, number: int = 1) -> tuple[str, list[QueuedRequest]]:
    query = await queue.query(slo_s=600.0)
    return query.id, [await query.submit("ask", SIZE) for _ in range(number)]


async def finish(requests: list[QueuedRequest]) -> None:
    for request in requests:
        await request.admitted()
        await request.finish()


async def test_what_others_have_there_is_seen_and_makes_dispatch_go_elsewhere(
    fleet: Any, queue: SharedQueue, look: Any, eventually: Any
) -> None:
    busy = await fleet.start("a-busy", LONG, slots=8)
    await fleet.start("b-idle", LONG, slots=8)
    _, first = await submitted(queue)
    assert first[0].instance == "a-busy"  # a tie, which goes to the first name
    await finish(first)
    async with others_use(busy, 3, eventually):
        await see(look, {"a-busy": (3, 0), "b-idle": (0, 0)})
        seen = view(queue, "a-busy")
        assert (seen.foreign_running, seen.foreign_waiting) == (3, 0)
        assert seen.backlog_s == 0.0  # which is ours alone
        query_id, second = await submitted(queue)
    assert second[0].instance == "b-idle"
    [decided] = queue.store.read(lambda connection: decisions_of(connection, query_id))
    record = decided["record"]
    assert isinstance(record, Decision)
    delays = {score.instance: score.queue_delay_s for score in record.scores}
    assert delays["a-busy"] > delays["b-idle"] == 0.0
    await finish(second)


async def test_our_own_requests_are_not_taken_for_others(
    fleet: Any, queue: SharedQueue, look: Any, eventually: Any, prompt: Any
) -> None:
    emulator = await fleet.start("m", LONG, slots=8)
    _, ours = await submitted(queue, 3)
    running = [asyncio.ensure_future(one.complete(prompt(tokens=20_000))) for one in ours]
    await eventually(lambda: emulator.instance.engine.running == 3)
    await see(look, {"m": (0, 0)})
    async with others_use(emulator, 2, eventually):
        await see(look, {"m": (2, 0)})
    for request, call in zip(ours, running, strict=True):
        call.cancel()
        await request.cancel("the test is over")


async def test_others_take_slots_and_what_waits_starts_when_they_have_gone(
    fleet: Any, queue: SharedQueue, look: Any, eventually: Any
) -> None:
    emulator = await fleet.start("m", LONG, slots=4)
    async with others_use(emulator, 3, eventually):
        await see(look, {"m": (3, 0)})
        _, ours = await submitted(queue, 3)
        assert [request.grant is not None for request in ours] == [True, False, False]
        assert fleet.violations() == []
    await see(look, {"m": (0, 0)})
    await eventually(lambda: fleet.occupied("m") == 3)
    assert (view(queue, "m").foreign_running, view(queue, "m").foreign_waiting) == (0, 0)
    await finish(ours)


async def test_a_full_server_still_gets_one_of_ours(
    fleet: Any, queue: SharedQueue, look: Any, eventually: Any
) -> None:
    """It would else never be known to be free again by our own traffic."""
    emulator = await fleet.start("m", LONG, slots=2)
    async with others_use(emulator, 5, eventually):
        await see(look, {"m": (2, 3)})
        _, ours = await submitted(queue, 2)
        assert [request.grant is not None for request in ours] == [True, False]
    await see(look, {"m": (0, 0)})
    await finish(ours)


async def test_processes_look_in_turn(
    fleet: Any, queue: SharedQueue, look: Any, new_queue: Any
) -> None:
    await fleet.start("m", LONG)
    await see(look, {"m": (0, 0)})
    other = await new_queue()
    await other.foreign_load.stop()
    watcher = ForeignLoad(other.store, other.client, other.directory, look_every_s=3600.0)
    assert await watcher.look() == {}
    queue.store.transact(lambda tx: tx.connection.exec_driver_sql(_LONG_AGO))
    await see(watcher.look, {"m": (0, 0)})


_LONG_AGO = "UPDATE instances SET foreign_seen_at = foreign_seen_at - 7200"


@pytest.mark.parametrize("speaks", ["openai", "vllm"])
async def test_a_server_that_tells_nothing_harms_nobody(
    fleet: Any, queue: SharedQueue, look: Any, speaks: Any
) -> None:
    """It has no metrics, or is not there at all."""
    spec = InstanceSpec(
        name="silent", url="http://127.0.0.1:9", profile=LONG, slots=2, speaks=speaks
    )
    queue.store.transact(lambda tx: enter_instance(tx, spec))
    emulator = await fleet.start("tells", LONG)
    await see(look, {"tells": (0, 0)})
    await emulator.stop()
    assert await look() == {}
    assert view(queue, "silent").foreign_seen_at is None


@pytest.mark.parametrize("answer", [b'{"no": "metrics"}', b"# nothing\n"], ids=["JSON", "empty"])
async def test_what_is_no_metrics_is_not_asked_for_again_soon(
    queue: SharedQueue, look: Any, answer: bytes
) -> None:
    asked: list[bytes] = []

    async def other_than_vllm(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        length = f"content-length: {len(answer)}\r\nconnection: close\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + length.encode() + answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(other_than_vllm, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        spec = InstanceSpec(
            name="m", url=f"http://127.0.0.1:{port}", profile=LONG, slots=2, speaks="vllm"
        )
        queue.store.transact(lambda tx: enter_instance(tx, spec))
        counts = []
        for _ in range(6):
            assert await look() == {}
            # Its health is asked after, too, by whoever watches that.
            counts.append(sum(request.startswith(b"GET /metrics ") for request in asked))
    assert counts[0] == 1
    assert counts[-1] == counts[2]  # on a busy machine one may come too late, and be repeated


async def test_the_queue_looks_by_itself(fleet: Any, new_queue: Any, eventually: Any) -> None:
    emulator = await fleet.start("m", LONG, slots=8)
    options = QueueOptions(shortest_timeout_s=10.0, look_every_s=0.1)
    async with others_use(emulator, 2, eventually):
        queue = await new_queue(options)
        await eventually(lambda: view(queue, "m").foreign_running == 2)
    await eventually(lambda: view(queue, "m").foreign_running == 0)
