"""How soon a question's first request is sent, and what a waiting question costs in memory.

The warm worker, a `process` worker and `flow.serve()` beside one another, in turn, with the real
`text2sql` flow. Times are from before the call that creates the flow run to the arrival of its
first request at an idle instance. Prints one line of JSON. In full size:

    HEXPREFECT_BENCHMARK_RUNS=20 HEXPREFECT_BENCHMARK_QUERIES=100 \\
        pytest tests/benchmarks/test_worker_start.py -s

By default it is small, and asserts only what it must not be: that a process is as good.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from hexprefect.orchestration.pools_apply import read_templates
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, StandIn
from tests.orchestration.conftest import (  # noqa: F401
    PrefectServer,
    empty_store,
    fleet,
    prefect_client,
    prefect_server,
)
from tests.orchestration.worker_bench import until

RUNS = int(os.environ.get("HEXPREFECT_BENCHMARK_RUNS", "2"))
QUERIES = int(os.environ.get("HEXPREFECT_BENCHMARK_QUERIES", "5"))
"""Questions at once in the warm worker, when its memory is measured."""
PROCESSES = 2
"""… in the others: each is a Python process, and equal to the next."""
POLL_SECONDS = int(os.environ.get("HEXPREFECT_BENCHMARK_POLL_SECONDS", "1"))
"""Of the process worker and of `serve()`, whose defaults are 10: the best that they can do."""
ALL_WAIT_LIMIT_S = 900.0
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Contest:
    """The three ways to run a flow, each with a deployment of its own."""

    client: PrefectClient
    fleet: Fleet
    instance: StandIn
    environment: dict[str, str]
    folder: Path
    project: Path
    """What is deployed from: Prefect walks the whole of it for each run of a `process` worker."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    deployments: dict[str, UUID] = field(default_factory=dict)

    def spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command],
                env={**self.environment, "PREFECT_WORKER_QUERY_SECONDS": str(POLL_SECONDS)},
                cwd=self.project,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def start_worker(self, name: str, kind: str) -> None:
        """A pool, a deployment and a worker of one type."""
        pool = f"{name}-{uuid4().hex[:6]}"
        template = read_templates()["text2sql"]
        await self.client.create_work_pool(
            WorkPoolCreate(name=pool, type=kind, base_job_template=template)
        )
        self.deployments[name] = await self.client.create_deployment(
            await self.client.create_flow_from_name("text2sql"),
            name=pool,
            entrypoint="flows/text2sql.py:ask",
            path=str(self.project),
            work_pool_name=pool,
            enforce_parameter_schema=False,
        )
        worker = ("-m", "prefect", "worker", "start", "--pool", pool, "--type", kind)
        self.spawn(name, *worker, "--name", name)

    async def start_serving(self) -> None:
        """`flow.serve()`, which makes its own deployment."""
        name = f"serve-{uuid4().hex[:6]}"
        self.spawn(
            "serve", str(Path(__file__).with_name("served_flow.py")), name, str(POLL_SECONDS)
        )

        async def deployed() -> UUID | None:
            try:
                return (await self.client.read_deployment_by_name(f"text2sql/{name}")).id
            except ObjectNotFound:
                return None

        self.deployments["serve"] = await until(deployed)

    async def ask(self, name: str) -> tuple[str, UUID]:
        """Create one flow run; the words by which its requests are recognised, and its id."""
        words = f"How many customers, {uuid4().hex}?"
        run = await self.client.create_flow_run_from_deployment(
            self.deployments[name],
            parameters={"question": words, "database": "demo", "slo_s": 3600},
        )
        return words, run.id

    async def arrival(self, words: str) -> float:
        """When the first request of that question came, in epoch seconds."""

        async def arrived() -> float | None:
            asked = zip(list(self.instance.asked), list(self.instance.asked_at), strict=False)
            return next((at for text, at in asked if words in text), None)

        return await until(arrived)

    async def end(self, flow_run_id: UUID) -> None:
        """Wait until a flow run is over, so that it does not disturb the next one's start."""

        async def ended() -> bool:
            state = (await self.client.read_flow_run(flow_run_id)).state
            return state is not None and state.is_final()

        await until(ended)

    async def seconds_to_first_request(self, name: str) -> float:
        """Of one question, with nothing else to do."""
        began = time.time()
        words, flow_run_id = await self.ask(name)
        took = await self.arrival(words) - began
        await self.end(flow_run_id)
        return took

    async def memory_mb(self, name: str, count: int) -> tuple[float, float]:
        """Resident memory of a worker and its processes: without a question, and with `count`."""
        idle = resident_mb(self.processes[name].pid)
        self.instance.hold()
        try:
            asked = [await self.ask(name) for _ in range(count)]
            # Served or queued: how many an instance is given at once is the scheduler's choice.
            async with asyncio.timeout(ALL_WAIT_LIMIT_S):
                while self.questions_waiting() < count:  # noqa: ASYNC110 (only looking tells)
                    await asyncio.sleep(0.5)
            busy = resident_mb(self.processes[name].pid)
        finally:
            self.instance.release()
        for _, flow_run_id in asked:
            await self.end(flow_run_id)
        return idle, busy

    def questions_waiting(self) -> int:
        """Questions with a call that is served or queued."""
        is_open = ("waiting", "running")
        rows = self.fleet.rows(tables.requests)
        return len({row["query_id"] for row in rows if row["state"] in is_open})

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture
async def contest(
    fleet: Fleet,  # noqa: F811
    prefect_client: PrefectClient,  # noqa: F811
    prefect_server: PrefectServer,  # noqa: F811
    tmp_path: Path,
) -> AsyncIterator[Contest]:
    instance = fleet.add("idle", slots=QUERIES + 2 * PROCESSES)
    instance.reply = "```sql\nSELECT COUNT(*) FROM customer\n```"
    environment = {
        **prefect_server.environment,
        "HEXPREFECT_STORE": fleet.url,
        "HEXPREFECT_STATE": str(tmp_path / "state"),
        "HEXPREFECT_SHORTEST_TIMEOUT_S": "3600",
    }
    project = tmp_path / "project"
    project.mkdir()
    shutil.copytree(REPOSITORY / "flows", project / "flows")
    contest = Contest(prefect_client, fleet, instance, environment, tmp_path, project)
    try:
        await contest.start_worker("warm", "hexgen")
        await contest.start_worker("process", "process")
        await contest.start_serving()
        yield contest
    finally:
        await asyncio.to_thread(contest.stop)


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_warm_worker_sends_a_request_sooner_and_costs_less_memory(
    contest: Contest, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in contest.deployments:
        await contest.seconds_to_first_request(name)  # the first one pays for its caches
    took: dict[str, list[float]] = {name: [] for name in contest.deployments}
    for number in range(1, RUNS + 1):
        for name, seconds in took.items():
            seconds.append(await contest.seconds_to_first_request(name))
        with capsys.disabled():
            latest = ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in took.items())
            print(f"{number} of {RUNS}: {latest}", file=sys.stderr)
    result: dict[str, object] = {"runs": RUNS, "poll_s": POLL_SECONDS, "load": os.getloadavg()[0]}
    per_query = {}
    for name, seconds in took.items():
        count = QUERIES if name == "warm" else PROCESSES
        idle_mb, busy_mb = await contest.memory_mb(name, count)
        with capsys.disabled():
            print(f"{name}: {idle_mb:.0f} MB, {busy_mb:.0f} with {count}", file=sys.stderr)
        per_query[name] = (busy_mb - idle_mb) / count
        result[name] = {
            "p50_s": round(percentile(seconds, 50), 3),
            "p95_s": round(percentile(seconds, 95), 3),
            "queries": count,
            "idle_mb": round(idle_mb),
            "busy_mb": round(busy_mb),
            "mb_per_query": round(per_query[name], 2),
        }
    p50 = {name: percentile(seconds, 50) for name, seconds in took.items()}
    result["process_to_warm"] = round(p50["process"] / p50["warm"], 1)
    result["serve_to_warm"] = round(p50["serve"] / p50["warm"], 1)
    with capsys.disabled():
        print(f"\n{json.dumps(result)}")
    assert p50["warm"] < p50["process"] / 2
    assert per_query["warm"] < per_query["process"] / 2


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def resident_mb(pid: int) -> float:
    """Resident memory of a process and of all that descend from it (Linux)."""
    total = 0.0
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            status = Path(f"/proc/{current}/status").read_text()
            threads = list(Path(f"/proc/{current}/task").iterdir())
            children = " ".join((thread / "children").read_text() for thread in threads)
        except OSError:
            continue  # it has ended meanwhile
        total += sum(
            int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")
        )
        waiting += [int(child) for child in children.split()]
    return total
