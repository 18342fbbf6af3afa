"""Real vLLM: two unequal instances, launched by `serve-instance` and asked by `text2sql`.

Random weights answer nonsense, which is all that these tests need: that requests are served by
both, in the order of their priority, that a killed engine costs no query, and that the recorded
answers are still vLLM's. The first run installs vLLM (see `recipe`).
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from pydantic import SecretStr

from hexprefect.completion import Message, Prompt
from hexprefect.embedded.children import free_port
from hexprefect.flows.serve_instance import serve_instance
from hexprefect.flows.text2sql import ask as ask_flow
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceUnavailable
from hexprefect.instances.launched.guardian import descendants
from hexprefect.orchestration.pools_apply import apply_pools
from hexprefect.queue import SharedQueue
from hexprefect.scheduling.profile_fitting import finished_requests, fit_profile, relative_error
from hexprefect.settings import settings
from hexprefect.store import tables
from hexprefect.store.profiles import runs_on
from hexprefect.store.views import instance_views
from tests.orchestration.bench import Fleet
from tests.real_vllm.cases import CASES, CONTEXT_TOKENS, ask
from tests.real_vllm.recipe import ARGUMENTS, ENVIRONMENT, ensure_vllm, make_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
RECORDED = HERE / "answers_of_vllm_0_32.json"
START_LIMIT_S = 600.0
LIMIT_S = 300.0
QUERIES = 6
FAST, SLOW = "a100-launched-1", "l40s-launched-1"

QUESTIONS = (
    "How many customers do we have?",
    "Which product is the most expensive one?",
    "What is the average price of a product?",
    "How many orders were placed last year?",
)


async def until(look: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    async with asyncio.timeout(limit_s):
        while not (seen := await asyncio.to_thread(look)):  # noqa: ASYNC110 (only looking tells)
            await asyncio.sleep(0.05)
        return seen


def engine_below(ancestor: int, port: int) -> int:
    """The engine process of the vLLM that listens on `port`, somewhere below a process."""
    for pid in descendants(ancestor):
        if " serve " in (command := command_of(pid)) and f"--port {port}" in command:
            for child in descendants(pid):
                if "EngineCore" in command_of(child):
                    return child
    raise AssertionError(f"no engine behind port {port}")


@dataclass
class Servers:
    """Two launched instances and the flow runs that serve them."""

    fleet: Fleet
    client: PrefectClient
    vllm: Path
    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    flows: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def start(
        self, pool: str, *, hidden: int, layers: int, seqs: int, key: str | None = None
    ) -> None:
        name = f"{pool}-launched-1"
        model = await asyncio.to_thread(
            make_model,
            self.folder / pool,
            self.vllm,
            hidden=hidden,
            layers=layers,
            context=CONTEXT_TOKENS,
        )
        self.ports[name] = free_port()
        template = copy.deepcopy((await self.client.read_work_pool(pool)).base_job_template)
        properties = template["variables"]["properties"]
        properties["model"]["default"] = "tiny"
        if key is not None:
            properties["api_key_secret"]["default"] = key
        properties["profile"]["default"] = f"local-0.5b-{'2-threads' if seqs > 1 else '1-thread'}"
        properties["admission_depth"]["default"] = seqs
        properties["launch"]["default"] = {
            "replicas": 1,
            "port": self.ports[name],
            "model": str(model),
            "max_num_seqs": seqs,
            "max_model_len": CONTEXT_TOKENS,
            "executable": str(self.vllm),
            "environment": ENVIRONMENT,
            "extra_arguments": list(ARGUMENTS),
        }
        await self.client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))
        self.flows[name] = asyncio.create_task(
            serve_instance(
                pool=pool,
                drain_s=60,
                restarts=0,
                start_timeout_s=START_LIMIT_S,
                return_state=True,
            )
        )

    def endpoint(self, name: str) -> Endpoint:
        spec = self.fleet.view(name).spec
        return Endpoint(name, spec.url, spec.model)

    def is_alive(self, name: str) -> bool:
        view = self.fleet.store.read(instance_views).get(name)
        return view is not None and view.state == "alive"

    async def until_alive(self, name: str) -> None:
        await until(lambda: self.is_alive(name) or self.flows[name].done(), START_LIMIT_S)
        assert not self.flows[name].done(), self.flows[name].result()


@asynccontextmanager
async def servers(fleet: Fleet, client: PrefectClient, folder: Path) -> AsyncIterator[Servers]:
    vllm = await asyncio.to_thread(ensure_vllm)
    await apply_pools(client)
    running = Servers(fleet, client, vllm, folder)
    try:
        yield running
    finally:
        for flow in running.flows.values():
            flow.cancel()
        await asyncio.gather(*running.flows.values(), return_exceptions=True)
        left = [pid for pid in descendants(os.getpid()) if "vllm" in command_of(pid).lower()]
        assert left == [], "processes of vLLM are left"


def command_of(pid: int) -> str:
    """A process's command line; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture
def short_prompts(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, tmp_path: Path) -> None:
    """A context of two thousand tokens of a clumsy tokenizer holds a small schema."""
    monkeypatch.setenv("HEXPREFECT_SCHEMA_TOKENS", "200")
    monkeypatch.setenv("HEXPREFECT_STATE", str(tmp_path / "state"))
    settings.cache_clear()


@pytest.mark.usefixtures("seen_by_prefect", "short_prompts")
async def test_two_instances_serve_text2sql_and_a_killed_engine_costs_no_query(
    fleet: Fleet, prefect_client: PrefectClient, tmp_path: Path
) -> None:
    async with servers(fleet, prefect_client, tmp_path) as running:
        await running.start("a100", hidden=128, layers=2, seqs=2)
        await running.start("l40s", hidden=128, layers=4, seqs=1)
        await running.until_alive(FAST)
        await running.until_alive(SLOW)
        for name in (FAST, SLOW):
            spec = fleet.view(name).spec
            assert spec.context_tokens == CONTEXT_TOKENS
            assert spec.profile.kv_tokens, "vLLM tells how much its memory holds"

        await assert_answers_are_as_recorded(running.endpoint(FAST))
        await assert_priorities_are_honoured(running.endpoint(SLOW))

        # Served by both.
        states = await ask_many()
        assert_all_ended(fleet, states)
        by_instance = Counter(row["instance"] for row in finished(fleet))
        assert by_instance[FAST] > 0
        assert by_instance[SLOW] > 0

        # An engine killed while its requests run.
        asking = asyncio.create_task(ask_many())
        await until(lambda: fleet.view(FAST).occupied > 0 and fleet.view(SLOW).occupied > 0)
        os.kill(engine_below(os.getpid(), running.ports[FAST]), signal.SIGKILL)
        killed_at = time.time()
        states = await asking
        assert_all_ended(fleet, states)
        assert fleet.view(FAST).state == "dead"
        ended = await running.flows[FAST]
        assert ended.is_failed()
        assert "Its last words" in ended.message
        moved = [row for row in finished(fleet) if row["attempt"] > 1]
        assert moved, "no request was running there when its engine died"
        assert {row["instance"] for row in moved} == {SLOW}
        after = [row for row in finished(fleet) if row["started_at"] > killed_at + 5]
        assert {row["instance"] for row in after} <= {SLOW}
        assert fleet.violations() == []


async def ask_many() -> list[Any]:
    """Queries at once; whatever such a model says, each ends in a state with a reason."""
    return await asyncio.gather(
        *(
            ask_flow(
                question=f"{QUESTIONS[number % len(QUESTIONS)]} ({number})",
                database="demo",
                slo_s=600.0,
                return_state=True,
            )
            for number in range(QUERIES)
        )
    )


def assert_all_ended(fleet: Fleet, states: list[Any]) -> None:
    assert len(states) == QUERIES
    for state in states:
        assert state.is_completed() or state.is_failed(), state
        assert state.message
    assert not [row for row in fleet.rows(tables.queries) if row["state"] == "running"]
    requests = fleet.rows(tables.requests)
    # The model is at fault for what it says; no request may have failed for want of an instance.
    assert {row["state"] for row in requests} <= {"finished", "cancelled", "failed"}
    failed = [row["error"] for row in requests if row["state"] == "failed"]
    assert all("rejected the request" in (error or "") for error in failed), failed


def finished(fleet: Fleet) -> list[dict[str, Any]]:
    return [row for row in fleet.rows(tables.requests) if row["state"] == "finished"]


async def assert_answers_are_as_recorded(endpoint: Endpoint) -> None:
    """Each answer, field for field; with `HEXPREFECT_TEST_RECORD` they are recorded anew."""
    async with httpx.AsyncClient(trust_env=False, timeout=120) as http:
        answers = {case.name: await ask(http, endpoint.url, case, model="tiny") for case in CASES}
    if os.environ.get("HEXPREFECT_TEST_RECORD"):
        RECORDED.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", "utf-8")
    recorded = json.loads(RECORDED.read_text("utf-8"))
    assert answers == recorded


async def until_busy(client: InstanceClient, endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.load(endpoint)).running != 1:  # noqa: ASYNC110 (only asking tells)
            await asyncio.sleep(0.01)


async def assert_priorities_are_honoured(endpoint: Endpoint) -> None:
    """With one slot, what waits in the engine is served lowest first; ties in order of arrival."""
    priorities = (5, 1, 3, -2, 0, 9, 1, -2)
    done: list[int] = []
    text = Prompt("judge", (Message("user", "x"),), max_output_tokens=4)
    # Random weights end an answer where they please: these may not end before the others wait.
    long = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": "Tell me at length"}],
        "max_tokens": 1200,
        "ignore_eos": True,
        "priority": -9,
    }
    async with (
        InstanceClient() as client,
        httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http,
    ):

        async def send(number: int) -> None:
            await client.complete(endpoint, text, timeout_s=LIMIT_S, priority=priorities[number])
            done.append(number)

        route = endpoint.route("/v1/chat/completions")
        running = [asyncio.create_task(http.post(route, json=long)) for _ in range(3)]
        await until_busy(client, endpoint)
        sends = []
        for number in range(len(priorities)):
            sends.append(asyncio.create_task(send(number)))
            await asyncio.sleep(0.05)
        assert done == [], "they were to wait behind the long ones"
        answers, _ = await asyncio.gather(asyncio.gather(*running), asyncio.gather(*sends))
        assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {1200}
    assert done == sorted(range(len(priorities)), key=lambda number: (priorities[number], number))


@pytest.mark.usefixtures("seen_by_prefect", "short_prompts")
async def test_its_key_its_full_queue_and_its_drain(
    fleet: Fleet, prefect_client: PrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.real_vllm.test_real_vllm.ARGUMENTS", (*ARGUMENTS, "--max-num-queued-reqs", "1")
    )
    monkeypatch.setenv("VLLM_TEST_KEY", "sk-tiny")
    async with servers(fleet, prefect_client, tmp_path) as running:
        await running.start("a100", hidden=128, layers=2, seqs=1, key="env:VLLM_TEST_KEY")
        await running.until_alive(FAST)
        without = running.endpoint(FAST)
        async with httpx.AsyncClient(trust_env=False) as http:
            refused = await http.get(without.route("/v1/models"))
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        endpoint = replace(without, api_key=SecretStr("sk-tiny"))
        assert not [pid for pid in descendants(os.getpid()) if "sk-tiny" in command_of(pid)]
        long = Prompt("judge", (Message("user", "Tell me"),), max_output_tokens=1500, seed=1)
        async with InstanceClient() as client:
            first = asyncio.create_task(client.complete(endpoint, long, timeout_s=LIMIT_S))
            await until_busy(client, endpoint)
            with pytest.raises(InstanceUnavailable) as caught:
                await client.complete(endpoint, long, timeout_s=LIMIT_S)
            assert caught.value.kind == "overloaded"
            running.flows[FAST].cancel()
            completion = await first
            assert completion.output_tokens > 0, "a drain waits for what others run there, too"
        with pytest.raises(asyncio.CancelledError):
            await running.flows[FAST]
        assert fleet.view(FAST).state == "dead"


@pytest.mark.benchmark
@pytest.mark.usefixtures("seen_by_prefect", "short_prompts")
async def test_durations_are_predicted_within_15_percent_after_fitting(
    fleet: Fleet, prefect_client: PrefectClient, tmp_path: Path
) -> None:
    """Needs a quiet machine: what else runs is in the durations, and in no profile.

    The first two thirds of the requests are fitted to, the last third judges.
    """
    generator = np.random.default_rng(7)
    async with servers(fleet, prefect_client, tmp_path) as running:
        await running.start("a100", hidden=512, layers=8, seqs=2)
        await running.until_alive(FAST)
        async with SharedQueue(fleet.url) as queue:

            async def run(number: int) -> None:
                words = int(generator.integers(5, 120))
                prompt = Prompt(
                    "judge",
                    # Told apart from its first word on: no cache may hold any of it.
                    (Message("user", f"{number} " + f"column_{number} " * words),),
                    max_output_tokens=int(generator.integers(8, 160)),
                    temperature=1.0,
                    seed=number,
                )
                query = await queue.query(slo_s=3600.0)
                await query.complete(prompt)
                await query.end("answered")

            # Alone, and two at a time: what a batch costs is learned, too.
            for number in range(60):
                await run(number)
            for number in range(60, 120, 2):
                await asyncio.gather(run(number), run(number + 1))
        described = fleet.view(FAST).spec.profile
        requests = finished_requests(fleet.store.read(lambda c: runs_on(c, FAST)))
    shuffled = [requests[index] for index in generator.permutation(len(requests))]
    fitted_to, judged = shuffled[: 2 * len(shuffled) // 3], shuffled[2 * len(shuffled) // 3 :]
    profile = described
    for _ in range(12):  # a fit moves by a bounded step, as one an hour does
        profile = fit_profile(profile, fitted_to).profile
    before, after = relative_error(described, judged), relative_error(profile, judged)
    print(
        json.dumps(
            {
                "requests": len(requests),
                "judged": len(judged),
                "before_median": round(before.median, 3),
                "after_median": round(after.median, 3),
                "after_p95": round(after.p95, 3),
                "c": profile.fixed_s,
                "a": profile.input_s_per_token,
                "b": profile.output_s_per_token,
                "batch_growth": profile.batch_growth,
            }
        )
    )
    assert after.median <= 0.15
