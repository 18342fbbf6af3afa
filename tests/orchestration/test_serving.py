"""A launched instance in the fleet: it enters, serves, drains, dies, and leaves nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from hexprefect.completion import Completion, Message, Prompt
from hexprefect.instances.emulator import Computed, Emulator
from hexprefect.instances.errors import InstanceStartFailed
from hexprefect.instances.launched import ServerEnded
from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.fleet_sync import NOT_SERVED, synchronise_fleet
from hexprefect.orchestration.pools import PoolInstance, VllmLaunch
from hexprefect.orchestration.serving import (
    STOPPED,
    NothingToLaunch,
    Serving,
    ServingOptions,
    ServingReport,
    launched_instance,
)
from hexprefect.orchestration.serving_artifacts import page_of
from hexprefect.orchestration.serving_lease import ServedElsewhere, ServingLease, is_served
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.store import InstanceSpec, InstanceView, Store, check_laws
from hexprefect.store.fleet import enter_instance, remove_instance, set_instance_state
from hexprefect.store.views import instance_views

STAND_IN = Path(__file__).parents[1] / "instances" / "stand_in_vllm.py"
LIMIT_S = 120.0
NAME = "a100-launched-1"
KEY = SecretStr("sk-never-to-be-seen")
OPTIONS = ServingOptions(start_timeout_s=LIMIT_S, drain_s=LIMIT_S, restarts=0, lease_s=60.0)
QUEUE = QueueOptions(outage_patience_s=LIMIT_S, shortest_timeout_s=LIMIT_S, probe_every_s=0.2)


def alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while not (seen := await asyncio.to_thread(look)):  # noqa: ASYNC110 (only looking tells)
            await asyncio.sleep(0.02)
        return seen


def ask(text: str = "How many singers?", tokens: int = 8) -> Prompt:
    return Prompt("judge", (Message("user", text),), max_output_tokens=tokens)


@dataclass
class Bench:
    """A store, a pool's launched instance, and flow runs that serve it."""

    store: Store
    folder: Path
    launch: VllmLaunch
    environment: dict[str, str] = field(default_factory=dict)
    reports: list[ServingReport] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    _running: list[asyncio.Task[str]] = field(default_factory=list)
    _stores: list[Store] = field(default_factory=list)

    def instance(self) -> PoolInstance:
        environment = {"STAND_IN_PIDS": str(self.folder / "pids"), **self.environment}
        return PoolInstance(
            pool="a100",
            paused=False,
            name=NAME,
            url=f"http://127.0.0.1:{self.launch.port}",
            model="tiny",
            profile="a100",
            speaks="vllm",
            slots=self.launch.max_num_seqs,
            admission_depth=2,
            api_key_secret="env:BENCH_KEY",
            api_key=KEY,
            launch=replace(self.launch, environment=environment),
        )

    def serve(self, **options: Any) -> asyncio.Task[str]:
        """Begin to serve, as the flow does it."""
        store = Store(self.store.url, process=ServingLease.process_of(NAME))
        self._stores.append(store)
        serving = Serving(
            self.instance(),
            store,
            options=replace(OPTIONS, **options),
            log_folder=self.folder,
            logger=logging.getLogger("bench"),
            tell=self.reports.append,
        )
        task = asyncio.create_task(serving.run())
        self._running.append(task)
        return task

    async def serving(self, **options: Any) -> asyncio.Task[str]:
        """Begin to serve; returns when the fleet has the instance."""
        task = self.serve(**options)
        await self.until_state("alive", task)
        return task

    async def until_state(self, state: str, task: asyncio.Task[str] | None = None) -> None:
        def look() -> bool:
            view = self.view()
            return (view is not None and view.state == state) or (task is not None and task.done())

        await until(look)
        if task is not None and task.done():
            task.result()

    async def set_fault(self, fault: str) -> None:
        """Of the emulator behind the stand-in."""
        async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:
            url = f"http://127.0.0.1:{self.launch.port}/emulator/fault"
            answer = await http.post(url, json={"fault": fault})
            assert answer.status_code == 200

    def view(self) -> InstanceView | None:
        return self.store.read(instance_views).get(NAME)

    def state(self) -> tuple[str, str | None]:
        view = self.view()
        assert view is not None
        return view.state, view.reason

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def is_served(self) -> bool:
        now = self.store.now()
        return self.store.read(lambda connection: is_served(connection, NAME, now=now))

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for store in self._stores:
            await asyncio.to_thread(store.close)


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    command = tmp_path / "vllm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    command.chmod(0o755)
    return str(command)


@pytest.fixture
async def bench(
    new_sqlite_url: str, open_store: Callable[..., Store], tmp_path: Path, vllm: str
) -> AsyncIterator[Bench]:
    """The laws hold, and no process is left, when the test is over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = VllmLaunch(
        model="tiny",
        host="127.0.0.1",
        port=port,
        tensor_parallel_size=1,
        quantization=None,
        max_num_seqs=2,
        max_model_len=4096,
        extra_arguments=(),
        executable=vllm,
        environment={},
    )
    bench = Bench(open_store(new_sqlite_url), tmp_path, launch)
    try:
        yield bench
        await bench.close()
        assert not any(map(alive, bench.pids()))
        now = bench.store.now()
        assert bench.store.read(lambda connection: check_laws(connection, now=now)) == []
    finally:
        await bench.close()
        for pid in filter(alive, bench.pids()):
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def queue_of(bench: Bench) -> AsyncIterator[SharedQueue]:
    async def secret(name: str) -> SecretStr:
        assert name == "env:BENCH_KEY"
        return KEY

    async with SharedQueue(bench.store.url, options=QUEUE, resolve_secret=secret) as queue:
        yield queue


async def complete(queue: SharedQueue, prompt: Prompt) -> Completion:
    query = await queue.query(slo_s=300.0)
    completion = await query.complete(prompt)
    await query.end("answered")
    return completion


@asynccontextmanager
async def other_instance(bench: Bench) -> AsyncIterator[Emulator]:
    """A slower instance, for requests that have to move."""
    emulator = Emulator("a6000", name="other", content=Computed(lambda _: "SELECT 1"))
    async with emulator as endpoint:
        spec = InstanceSpec(
            name="other",
            url=endpoint.url,
            profile=default_profile("a6000"),
            slots=2,
            model=endpoint.model,
            speaks="vllm",
        )
        bench.store.transact(lambda tx: enter_instance(tx, spec))
        yield emulator


# -- its life --------------------------------------------------------------------------------------


async def test_it_serves_requests_of_the_queue_until_it_is_cancelled(bench: Bench) -> None:
    serving = await bench.serving()
    view = bench.view()
    assert view is not None
    assert (view.spec.pool, view.spec.model, view.spec.slots) == ("a100", "tiny", 2)
    assert view.spec.api_key_block == "env:BENCH_KEY"
    assert view.spec.context_tokens == 4096, "as the server tells it"
    assert view.spec.profile.kv_tokens == 16_384, "as the server tells it"
    assert bench.is_served()
    async with queue_of(bench) as queue:
        completion = await complete(queue, ask())
    assert (completion.instance, completion.text) == (NAME, "SELECT 1")

    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert bench.state() == ("dead", STOPPED)
    assert not any(map(alive, bench.pids()))
    await until(lambda: not bench.is_served())
    states = [report.state for report in bench.reports]
    assert list(dict.fromkeys(states)) == ["starting", "serving", "draining", "stopped"]
    fractions = [report.fraction for report in bench.reports]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


async def test_the_key_is_in_no_log_and_no_report(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    serving = await bench.serving()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    said = caplog.text + repr(bench.reports) + (bench.folder / f"{NAME}.log").read_text()
    assert "serve tiny" in said
    assert KEY.get_secret_value() not in said


async def test_a_drain_waits_for_what_runs_however_often_it_is_cancelled(bench: Bench) -> None:
    serving = await bench.serving()
    async with other_instance(bench), queue_of(bench) as queue:
        bench.store.transact(lambda tx: set_instance_state(tx, "other", "dead"))
        # So slow that it runs until the drain has been seen, however long that takes.
        await bench.set_fault("slow:1000")
        running = asyncio.create_task(complete(queue, ask("Tell me at length", tokens=1500)))
        await until(lambda: (view := bench.view()) is not None and view.occupied == 1)
        for _ in range(5):
            serving.cancel()
            await asyncio.sleep(0.05)
        await bench.until_state("draining")
        bench.store.transact(lambda tx: set_instance_state(tx, "other", "alive"))
        after = await complete(queue, ask())
        assert after.instance == "other", "what comes while it drains goes elsewhere"
        await bench.set_fault("none")
        completion = await running
        assert (completion.instance, completion.attempt) == (NAME, 1)
        assert completion.output_tokens == 1500
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert bench.state() == ("dead", STOPPED)


async def test_a_drain_ends_when_its_time_is_over_and_what_ran_moves(bench: Bench) -> None:
    bench.environment["STAND_IN_SCALE"] = "0.01"
    serving = await bench.serving(drain_s=0.5)
    async with queue_of(bench) as queue:
        running = asyncio.create_task(complete(queue, ask("Tell me at length", tokens=1500)))
        await until(lambda: (view := bench.view()) is not None and view.occupied == 1)
        async with other_instance(bench):
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            completion = await running
            assert (completion.instance, completion.attempt) == ("other", 2)


@pytest.mark.parametrize("killed", [0, 1], ids=["server", "engine"])
async def test_its_death_makes_the_instance_dead_at_once_and_its_requests_move(
    bench: Bench, killed: int
) -> None:
    bench.environment["STAND_IN_SCALE"] = "0.01"
    serving = await bench.serving()
    async with queue_of(bench) as queue:
        running = [
            asyncio.create_task(complete(queue, ask("Tell me at length", tokens=1500)))
            for _ in range(3)
        ]
        await until(lambda: (view := bench.view()) is not None and view.occupied == 2)
        async with other_instance(bench):
            os.kill(bench.pids()[killed], signal.SIGKILL)
            with pytest.raises(ServerEnded, match="Its last words") as ended:
                await serving
            assert KEY.get_secret_value() not in str(ended.value)
            state, reason = bench.state()
            assert state == "dead"
            assert reason != STOPPED, "why it died is worth more than that it has ended"
            completions = await asyncio.gather(*running)
    assert {completion.instance for completion in completions} == {"other"}
    assert {completion.text for completion in completions} == {"SELECT 1"}


async def test_a_server_that_died_is_started_again(bench: Bench) -> None:
    serving = await bench.serving(restarts=1)
    first = bench.pids()
    os.kill(first[0], signal.SIGKILL)
    await bench.until_state("dead")
    await until(lambda: bench.state()[0] == "alive" or serving.done())
    second = bench.pids()[2:]
    assert len(second) == 2
    async with queue_of(bench) as queue:
        assert (await complete(queue, ask())).instance == NAME
    os.kill(second[1], signal.SIGKILL)
    with pytest.raises(ServerEnded):
        await serving
    assert bench.reports[-1].deaths == 2


async def test_an_operators_drain_outlasts_the_death_of_the_server(bench: Bench) -> None:
    """It is started again, for it may be wanted again, but gets nothing before that is said."""
    await bench.serving(restarts=1)
    bench.store.transact(lambda tx: set_instance_state(tx, NAME, "draining", reason="by me"))
    os.kill(bench.pids()[0], signal.SIGKILL)
    await until(lambda: bench.reports[-1].state == "serving" and bench.reports[-1].deaths == 1)
    assert bench.state() == ("draining", "by me")


async def test_a_server_that_does_not_come_up_again_is_started_as_often_as_allowed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexprefect.orchestration.serving.RESTART_PAUSE_S", 0.01)
    serving = await bench.serving(restarts=2)
    await asyncio.to_thread(
        Path(bench.launch.executable).write_text, "#!/bin/sh\necho no memory >&2\nexit 3\n"
    )
    os.kill(bench.pids()[0], signal.SIGKILL)
    with pytest.raises(InstanceStartFailed, match=r"ended with status 3(.|\n)*no memory"):
        await serving
    assert bench.reports[-1].deaths == 3
    assert bench.state()[0] == "dead"


async def test_a_death_at_the_start_says_why_and_enters_nothing(bench: Bench) -> None:
    bench.environment["STAND_IN_FAILS"] = "memory"
    with pytest.raises(InstanceStartFailed, match="No available memory for the cache blocks"):
        await bench.serve(restarts=3)
    assert bench.view() is None
    await until(lambda: not bench.is_served())


async def test_an_operator_who_removes_it_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexprefect.orchestration.serving.REPORT_EVERY_S", 0.1)
    serving = await bench.serving()
    assert bench.store.transact(lambda tx: remove_instance(tx, NAME))
    async with asyncio.timeout(LIMIT_S):
        assert await serving == "it was removed from the store"


# -- its name --------------------------------------------------------------------------------------


async def test_two_flow_runs_do_not_serve_under_one_name(bench: Bench) -> None:
    first = await bench.serving()
    with pytest.raises(ServedElsewhere, match="another flow run"):
        await bench.serve(lease_s=0.2)
    assert bench.state()[0] == "alive"
    assert not first.done()
    assert len(bench.pids()) == 2, "the second started nothing"


async def test_a_lease_that_ran_out_is_taken_over_and_its_holder_steps_down(
    open_store: Callable[..., Store], new_sqlite_url: str
) -> None:
    process = ServingLease.process_of(NAME)
    old, new = (open_store(new_sqlite_url, process=process) for _ in range(2))
    async with ServingLease(old, NAME, lease_s=0.2) as first:
        await asyncio.sleep(0.3)  # it does not beat meanwhile
        async with ServingLease(new, NAME, lease_s=30.0):
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(ServedElsewhere, match="taken over"):
                    await first.keep()
            assert new.read(lambda c: is_served(c, NAME, now=new.now()))
        await until(lambda: not new.read(lambda c: is_served(c, NAME, now=new.now())))


async def test_a_lease_is_kept_alive_and_taken_anew_where_it_was_cleaned_away(
    open_store: Callable[..., Store], new_sqlite_url: str
) -> None:
    store = open_store(new_sqlite_url, process=ServingLease.process_of(NAME))
    async with ServingLease(store, NAME, lease_s=0.4) as lease:
        keeping = asyncio.create_task(lease.keep())
        store.transact(lambda tx: tx.connection.exec_driver_sql("DELETE FROM processes"))
        await until(lambda: store.read(lambda c: is_served(c, NAME, now=store.now())))
        assert not keeping.done()
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


# -- its pool --------------------------------------------------------------------------------------


@dataclass
class Pools:
    """A Prefect API that has work pools and nothing else."""

    template: dict[str, Any]
    paused: bool = False
    names: tuple[str, ...] = ("a100",)

    async def read_work_pools(self, *, limit: int, offset: int) -> list[Any]:
        from uuid import uuid4

        from prefect.client.schemas.objects import WorkPool

        return [
            WorkPool(
                name=name,
                type="hexgen",
                is_paused=self.paused,
                base_job_template=self.template,
                default_queue_id=uuid4(),
            )
            for name in self.names
        ]

    def launch(self, **values: Any) -> None:
        properties = self.template["variables"]["properties"]
        properties["launch"]["default"] = {**properties["launch"]["default"], **values}


@pytest.fixture
def pools() -> Iterator[Any]:
    import json

    text = (Path(__file__).parents[2] / "work_pools" / "a100.json").read_text("utf-8")
    pools = Pools(json.loads(text))
    pools.launch(replicas=1)
    return pools


async def test_the_fleet_has_a_launched_instance_only_while_it_is_served(
    bench: Bench, pools: Any
) -> None:
    assert await synchronise_fleet(pools, bench.store) == ()
    assert bench.view() is None, "nothing serves it yet"
    serving = await bench.serving()
    entered = bench.view()
    assert await synchronise_fleet(pools, bench.store) == ()
    assert bench.view() == entered

    pools.paused = True
    await synchronise_fleet(pools, bench.store)
    assert bench.state() == ("draining", "work pool a100 is paused")
    pools.paused = False
    await synchronise_fleet(pools, bench.store)
    assert bench.state()[0] == "alive"

    bench.store.transact(lambda tx: set_instance_state(tx, NAME, "draining", reason="by me"))
    await synchronise_fleet(pools, bench.store)
    assert bench.state() == ("draining", "by me"), "an operator's word stands"
    bench.store.transact(lambda tx: set_instance_state(tx, NAME, "alive"))

    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await synchronise_fleet(pools, bench.store)
    assert bench.state() == ("dead", STOPPED)


async def test_an_instance_whose_flow_run_is_gone_without_a_word_is_dead(
    bench: Bench, pools: Any
) -> None:
    spec = InstanceSpec(NAME, "http://127.0.0.1:1", default_profile("a100"), 2, pool="a100")
    bench.store.transact(lambda tx: enter_instance(tx, spec))
    await synchronise_fleet(pools, bench.store)
    assert bench.state() == ("dead", NOT_SERVED)


async def test_a_replica_that_the_pool_no_longer_launches_drains(bench: Bench, pools: Any) -> None:
    await bench.serving()
    pools.launch(replicas=0)
    await synchronise_fleet(pools, bench.store)
    assert bench.state() == ("draining", "no longer in pool a100")


async def test_the_pool_says_how_a_replica_is_launched(pools: Any) -> None:
    pools.launch(
        replicas=2,
        model="/models/llama",
        executable="/opt/vllm/bin/vllm",
        environment={"HF_HOME": "/hub"},
    )
    second = await launched_instance(pools, "a100", replica=2)
    assert second.name == "a100-launched-2"
    assert second.launch is not None
    assert second.launch.model == "/models/llama"
    assert second.model == "meta-llama/Llama-3.1-70B-Instruct", "the pool's name for it"
    assert second.launch.port == 8001
    assert second.launch.executable == "/opt/vllm/bin/vllm"
    assert second.launch.environment == {"HF_HOME": "/hub"}
    with pytest.raises(NothingToLaunch, match="launches 2 instances; there is no replica 3"):
        await launched_instance(pools, "a100", replica=3)


async def test_pools_of_two_machines_may_launch_on_the_same_port(pools: Any) -> None:
    pools.names = ("a100", "rack-2")
    first = await launched_instance(pools, "a100", replica=1)
    second = await launched_instance(pools, "rack-2", replica=1)
    assert first.url == second.url
    assert (first.name, second.name) == (NAME, "rack-2-launched-1")


def test_its_page_shows_its_state_and_what_it_said_last() -> None:
    report = ServingReport(NAME, "http://gpu:8000", "llama|8b", "dead", "````\nOut of memory")
    page = page_of(report)
    assert "**dead**" in page
    assert "Out of memory" in page
    assert page.count("````") == 2
