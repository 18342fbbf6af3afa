"""Servers that shed load, count no tokens, change their key or are described wrongly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hexprefect.instances.errors import InstanceRefused, InstanceUnavailable, PromptRejected
from hexprefect.queue import QueueOptions
from hexprefect.queue.directory import RESOLVE_EVERY_S
from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import finished_requests
from hexprefect.store import InstanceSpec
from hexprefect.store.fleet import enter_instance
from hexprefect.store.profiles import runs_on
from hexprefect.store.views import query_record

QUICK = Profile("quick", fixed_s=0.001, input_s_per_token=0.0, output_s_per_token=0.001)

ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"content": "SELECT 6"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 3},
}

Reply = tuple[int, Any, dict[str, str]]


@dataclass
class OddServer:
    """What it says to each request is the test's affair; only its health is its own."""

    reply: Callable[[str], Reply]
    url: str = ""
    completions: list[float] = field(default_factory=list)
    """When each request for a completion came."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.lower().split("\r\n")
                length = [int(line[15:]) for line in lines if line.startswith("content-length:")]
                await reader.readexactly(sum(length))
                if "/chat/" in head:
                    self.completions.append(time.monotonic())
                status, body, headers = self.reply(head)
                content = json.dumps(body).encode()
                said = {"content-length": str(len(content)), **headers}
                more = "".join(f"{name}: {value}\r\n" for name, value in said.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{more}\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


Start = Callable[..., Awaitable[OddServer]]


@pytest.fixture
async def start(fleet: Any) -> AsyncIterator[Start]:
    """Start an odd server and enter it in the store."""
    async with AsyncExitStack() as stack:

        async def start(name: str, reply: Callable[[str], Reply], **spec: Any) -> OddServer:
            odd = OddServer(reply)
            server = await asyncio.start_server(odd.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            known = {"name": name, "url": odd.url, "profile": QUICK, "slots": 1, "model": "m"}
            entered = InstanceSpec(**{**known, "speaks": "vllm", **spec})
            fleet.store.transact(lambda tx: enter_instance(tx, entered))
            return odd

        yield start


def well(head: str) -> Reply:
    return 200, ANSWER, {}


# -- too much to do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "pause_s"),
    [(503, {}, 0.0), (429, {}, 0.0), (429, {"retry-after": "1"}, 1.0)],
)
async def test_the_only_instance_may_shed_a_request_for_longer_than_a_few_moves_take(
    fleet: Any, queue: Any, prompt: Any, start: Start, status: int, headers: Any, pause_s: float
) -> None:
    """Others fill its queue: each try is over in a millisecond, and four are no reason to fail."""
    busy_until = time.monotonic() + 1.5
    busy = {"error": {"message": "The engine is busy and cannot accept new requests."}}

    def reply(head: str) -> Reply:
        if "/chat/" in head and time.monotonic() < busy_until:
            return status, busy, headers
        return well(head)

    server = await start("m", reply)
    query = await queue.query(slo_s=60)
    completion = await query.complete(prompt())
    assert completion.text == "SELECT 6"
    assert fleet.state("m") == "alive"
    gaps = [
        later - earlier
        for earlier, later in zip(server.completions, server.completions[1:], strict=False)
    ]
    assert min(gaps) >= max(0.1, pause_s), "it is left in peace"
    (run,) = fleet.store.read(lambda connection: finished_requests(runs_on(connection, "m")))
    assert run.seconds < 0.1, "and is not thought to be slow for it"
    await query.end("answered")
    assert fleet.idle()


async def test_a_request_that_is_shed_goes_to_another_instance_at_once(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    def busy(head: str) -> Reply:
        return (429, {}, {"retry-after": "20"}) if "/chat/" in head else well(head)

    await start("busy", busy)
    await start("free", well, profile=replace(QUICK, fixed_s=0.5))
    query = await queue.query(slo_s=60)
    completion = await asyncio.wait_for(query.complete(prompt()), 10)
    assert (completion.instance, completion.attempt) == ("free", 2)
    await query.end("answered")


async def test_a_request_is_not_shed_for_ever(
    fleet: Any, new_queue: Any, prompt: Any, start: Start
) -> None:
    queue = await new_queue(QueueOptions(overdue_patience_s=0.5))
    await start("m", lambda head: (429, {}, {}) if "/chat/" in head else well(head))
    query = await queue.query(slo_s=0.5)
    with pytest.raises(InstanceUnavailable, match="sheds load"):
        await asyncio.wait_for(query.complete(prompt()), 30)
    await query.end("failed")
    assert fleet.idle()


# -- what it does not tell ----------------------------------------------------------------------


async def test_nothing_is_learned_from_tokens_that_nobody_counted(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    """Taken for 0, they made every answer be expected to be empty."""
    silent = {key: value for key, value in ANSWER.items() if key != "usage"}
    await start("m", lambda head: (200, silent, {}))
    query = await queue.query(slo_s=60)
    for number in range(3):
        await query.complete(prompt(f"{number}", tokens=64))
    found = fleet.store.read(lambda connection: query_record(connection, query.id))
    for row in found["requests"]:
        assert (row["actual_input_tokens"], row["actual_output_tokens"]) == (None, None)
        assert row["predicted_output_tokens"] > 0
    await query.end("answered")


async def test_a_server_without_a_health_route_is_asked_for_its_models(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    await start("m", lambda head: (404, {}, {}) if "/health" in head else well(head))
    await asyncio.sleep(3.0)  # several probes
    assert fleet.state("m") == "alive"
    query = await queue.query(slo_s=60)
    assert (await query.complete(prompt())).instance == "m"
    await query.end("answered")


# -- its key, and its description ---------------------------------------------------------------


async def test_a_key_that_was_changed_is_read_anew(
    fleet: Any, queue: Any, prompt: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = "one"

    def reply(head: str) -> Reply:
        ours = f"bearer {right}\r\n" in head.lower() or "/health" in head
        return well(head) if ours else (401, {"error": "Unauthorized"}, {})

    monkeypatch.setenv("ODD_KEY", "one")
    await start("m", reply, api_key_block="env:ODD_KEY")
    query = await queue.query(slo_s=60)
    await query.complete(prompt("before"))
    right = "two"
    monkeypatch.setenv("ODD_KEY", "two")
    completion = await query.complete(prompt("after"))
    assert completion.attempt == 1
    assert fleet.state("m") == "alive"
    await query.end("answered")


async def test_an_instance_whose_key_this_process_lacks_costs_no_request(
    fleet: Any, queue: Any, prompt: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at once, and so looks idle: it must not swallow everything."""
    locked = await start("locked", well, api_key_block="env:ODD_KEY")
    await start("open", well, profile=replace(QUICK, fixed_s=0.5))
    query = await queue.query(slo_s=60)
    assert (await query.complete(prompt("one"))).instance == "open"
    await asyncio.sleep(1.0)  # some probes
    assert fleet.state("locked") == "alive", "another process may have its key"
    assert not locked.completions
    monkeypatch.setenv("ODD_KEY", "found")
    await asyncio.sleep(RESOLVE_EVERY_S)
    assert (await query.complete(prompt("two"))).instance == "locked"
    await query.end("answered")


async def test_the_only_instance_without_a_key_says_which_is_missing(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    await start("locked", well, api_key_block="env:ODD_KEY")
    query = await queue.query(slo_s=60)
    with pytest.raises(InstanceRefused, match="'env:ODD_KEY' cannot be resolved"):
        await query.complete(prompt())
    await query.end("failed")
    assert fleet.idle()


async def test_a_key_block_may_be_out_of_reach_for_any_reason(
    fleet: Any, queue: Any, prompt: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(name: str) -> Any:
        raise ConnectionError("http://user:pass-1@prefect does not answer")

    monkeypatch.setattr(queue.directory, "_resolve_secret", unreachable)
    await start("locked", well, api_key_block="a-block")
    query = await queue.query(slo_s=60)
    with pytest.raises(InstanceRefused, match="'a-block' could not be read: ConnectionError") as it:
        await query.complete(prompt())
    assert "pass-1" not in str(it.value)
    await query.end("failed")


async def test_a_change_of_dialect_is_heard_of(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    server = await start("m", well, speaks="openai")
    assert (await queue.directory.endpoint("m")).speaks == "openai"
    spec = InstanceSpec(name="m", url=server.url, profile=QUICK, slots=1, model="m", speaks="vllm")
    fleet.store.transact(lambda tx: enter_instance(tx, spec))
    await queue.directory.views(fresh=True)
    assert (await queue.directory.endpoint("m")).speaks == "vllm"


async def test_a_model_that_one_instance_does_not_have_costs_no_request(
    fleet: Any, queue: Any, prompt: Any, start: Start
) -> None:
    """Each has its own name for it: a wrong one is no fault of the prompt."""
    unknown = {"error": {"message": "The model `m` does not exist.", "code": 404}}
    await start("wrong", lambda head: (404, unknown, {}) if "/chat/" in head else well(head))
    query = await queue.query(slo_s=60)
    with pytest.raises(PromptRejected, match="does not exist"):
        await query.complete(prompt("alone"))
    await start("right", well, profile=replace(QUICK, fixed_s=0.5))
    assert (await query.complete(prompt("not alone"))).instance == "right"
    await query.end("answered")
    assert fleet.idle()
