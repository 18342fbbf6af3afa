"""What tests of the task runner need: stand-in instances, a store, and Prefect as it is seen."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx

from hexprefect.completion import Message, Prompt
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, Store
from hexprefect.store.fleet import enter_instance
from hexprefect.store.laws import check_laws
from hexprefect.store.views import instance_views

T = TypeVar("T")

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

LIMIT_S = 60.0
"""Waits end here; nothing is asserted about how long they took."""


def until(look: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    """The first true thing that `look` sees."""
    deadline = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return seen


async def until_async(look: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    return await asyncio.to_thread(until, look, limit_s=limit_s)


def prompt_of(text: str, *, stage: str = "ask") -> Prompt:
    return Prompt(stage=stage, messages=(Message("user", text),), max_output_tokens=16)


class StandIn:
    """An OpenAI-compatible server in a thread of its own, which answers with what it was asked, or
    with its `reply`.

    It answers after `seconds`, or, while `held`, when it is released. Asked for "reject …" it
    refuses the prompt, and says so as vLLM does.
    """

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.reply: str | None = None
        self.asked: list[str] = []
        self.asked_at: list[float] = []
        """Epoch seconds, of the same requests."""
        self.keys: list[str | None] = []
        """The `Authorization` of the same requests."""
        self.running: list[str] = []
        self.most_running = 0
        self.left: list[str] = []
        """What the client no longer wanted to hear when it hung up."""
        self.url = ""
        self._open = threading.Event()
        self._open.set()
        self._let: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def let(self, text: str) -> None:
        """Release this one alone."""
        self._let.add(text)

    def start(self, port: int = 0) -> StandIn:
        if not self._thread.is_alive():
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(10)
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _leave(self) -> None:
        assert self._server is not None
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = [line.split(": ", 1) for line in head.strip().split("\r\n")[1:]]
                headers = {key.lower(): value for key, value in lines}
                length = int(headers.get("content-length", 0))
                content = await reader.readexactly(length)
                if not content:
                    _write(writer, 200, {})
                    continue
                text = json.loads(content)["messages"][-1]["content"]
                self.keys.append(headers.get("authorization"))
                status = await self._generate(text, reader)
                if status is None:
                    return
                _write(
                    writer,
                    status,
                    _answer(self.reply or f"echo {text}") if status == 200 else _refusal(text),
                )
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _generate(self, text: str, reader: asyncio.StreamReader) -> int | None:
        self.asked.append(text)
        self.asked_at.append(time.time())
        self.running.append(text)
        self.most_running = max(self.most_running, len(self.running))
        try:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end or not (self._open.is_set() or text in self._let):
                left = end - time.monotonic()
                await asyncio.sleep(min(0.01, left) if left > 0 else 0.01)
                if reader.at_eof():
                    self.left.append(text)
                    return None
        finally:
            self.running.remove(text)
        return 400 if text.startswith("reject") else 200


def _write(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)


def _answer(text: str) -> dict[str, Any]:
    return {
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
            }
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24},
    }


def _refusal(text: str) -> dict[str, Any]:
    return {"error": {"message": f"cannot read {text!r}", "type": "BadRequestError", "code": 400}}


def profile(*, seconds: float) -> Profile:
    """Of an instance on which a request of these tests takes about this long."""
    return Profile("stand-in", seconds, 0.0, 0.0)


@dataclass
class Fleet:
    """A store with stand-in instances in it."""

    store: Store
    url: str
    instances: dict[str, StandIn] = field(default_factory=dict)

    def add(self, name: str, *, slots: int = 4, seconds: float = 0.0, **spec: Any) -> StandIn:
        stand_in = self.instances[name] = StandIn(seconds=seconds).start()
        described = InstanceSpec(
            name, stand_in.url, profile(seconds=max(seconds, 0.01)), slots, **spec
        )
        self.store.transact(lambda tx: enter_instance(tx, described))
        return stand_in

    def view(self, name: str) -> Any:
        return self.store.read(instance_views)[name]

    def rows(self, table: Any) -> list[dict[str, Any]]:
        return self.store.read(
            lambda connection: [row._asdict() for row in connection.execute(table.select())]
        )

    def dump(self) -> bytes:
        """All bytes of the store's file and its journal."""
        path = Path(self.url.removeprefix("sqlite:///"))
        return b"".join(found.read_bytes() for found in path.parent.glob(f"{path.name}*"))

    def violations(self) -> list[Any]:
        return self.store.read(lambda connection: check_laws(connection, now=self.store.now()))

    def occupied(self) -> int:
        return sum(view.occupied for view in self.store.read(instance_views).values())

    def backlog_s(self) -> float:
        return sum(view.backlog_s for view in self.store.read(instance_views).values())

    def stop(self) -> None:
        for stand_in in self.instances.values():
            stand_in.stop()
        self.store.close()


@dataclass
class SeenByPrefect:
    """What Prefect's server knows. States travel as events: look until they have arrived."""

    api_url: str

    def task_runs(self, flow_run_id: UUID | str) -> dict[str, dict[str, Any]]:
        """By id."""
        body = {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}}
        answer = httpx.post(f"{self.api_url}/task_runs/filter", json=body, timeout=30)
        answer.raise_for_status()
        return {task_run["id"]: task_run for task_run in answer.json()}

    def when(self, wanted: Mapping[UUID | str, str]) -> dict[str, dict[str, Any]]:
        """These task runs by id, once each has the state of that name."""
        body = {"task_runs": {"id": {"any_": [str(run) for run in wanted]}}}
        found: dict[str, dict[str, Any]] = {}

        def look() -> bool:
            answer = httpx.post(f"{self.api_url}/task_runs/filter", json=body, timeout=30)
            answer.raise_for_status()
            found.update({task_run["id"]: task_run for task_run in answer.json()})
            return all(
                str(run) in found and found[str(run)]["state_name"] == name
                for run, name in wanted.items()
            )

        try:
            until(look)
        except AssertionError:
            seen = {run: task_run["state_name"] for run, task_run in found.items()}
            raise AssertionError(f"wanted {dict(wanted)}, but Prefect knows {seen}") from None
        return found

    def states(self, task_run_id: UUID | str) -> list[tuple[str, str]]:
        """`(name, message)` of every state of a task run that has ended, in their order."""
        query = {"task_run_id": str(task_run_id)}

        def look() -> list[dict[str, Any]] | None:
            answer = httpx.get(f"{self.api_url}/task_run_states/", params=query, timeout=30)
            answer.raise_for_status()
            states = sorted(answer.json(), key=lambda state: state["timestamp"])
            # The server enters a state later than its name into the task run.
            return states if states and states[-1]["type"] in FINAL else None

        return [(state["name"], state["message"] or "") for state in until(look)]

    def flow_run(self, flow_run_id: UUID | str) -> dict[str, Any]:
        answer = httpx.get(f"{self.api_url}/flow_runs/{flow_run_id}", timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found
