"""A whole system of processes, each of which can be killed with SIGKILL and started again.

A Prefect server, a warm worker with the project's own `text2sql` flow, and emulated instances, all
on 127.0.0.1. The store is SQLite.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.states import Scheduled
from sqlalchemy import func, select

from hexprefect.embedded.children import Child, free_port
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.prefect_server import SERVER_SETTINGS, client_environment
from hexprefect.embedded.stack import RunningStack, create_pools, entered, find_repository
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceSpec, Store, tables, upgrade
from hexprefect.store.views import instance_views

T = TypeVar("T")
LIMIT_S = 300.0
"""Waits end here; nothing is asserted about how long they took."""
SPEEDS = {"fast": 0.5, "slow": 0.25}
"""Instances, and how many times faster than an a100 they are."""
SLOTS = 4
STARTED = "started!"
FEW_SERVICES = {
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}
"""What no test here needs is left out: the server is started twice."""
WORKER = "PREFECT_INTEGRATIONS_HEXPREFECT_WORKER_"


async def until(found: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Ask again and again; fail when it has not come true in the end."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if result := await found():
            return result
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within {LIMIT_S:.0f} s: {what}")


class BurningStack:
    """The processes, and what a test asks of them."""

    def __init__(self, running: RunningStack, store: Store, children: dict[str, Child]) -> None:
        self.running = running
        self.store = store
        self._children = children

    async def kill(self, name: str) -> None:
        """SIGKILL to a process and its group, and wait until it is gone."""
        child = self._children[name]
        os.killpg(child.pid, signal.SIGKILL)
        await child.stop()

    async def start(self, name: str) -> None:
        """Start a process that was killed, as it was started before; wait for it to be ready."""
        lives = self.log(name).count(STARTED) if name == "worker" else 0
        await self._children[name].__aenter__()
        if name == "prefect-server":
            await until_healthy(f"{self.running.api_url}/health", self._children[name])
        elif name in SPEEDS:
            await until_healthy(f"{self._spec(name).url}/health", self._children[name])
        else:

            async def started() -> bool:
                assert not self._children[name].has_ended, self._children[name].last_lines()
                return self.log(name).count(STARTED) > lives

            await until(started, f"{name} started")

    def log(self, name: str) -> str:
        """All that a process has said."""
        path = self._children[name].log
        return path.read_text(errors="replace") if path.exists() else ""

    def _spec(self, name: str) -> InstanceSpec:
        return next(spec for spec in self.running.instances if spec.name == name)

    async def ask(self, client: PrefectClient, questions: int) -> list[UUID]:
        """Create flow runs of `text2sql/ask`; their ids."""
        flow_id = await client.create_flow_from_name("text2sql")
        deployment = await client.create_deployment(
            flow_id,
            name="ask",
            entrypoint="flows/text2sql.py:ask",
            path=str(self.running.repository),
            work_pool_name="text2sql",
            enforce_parameter_schema=False,
        )

        async def create(number: int) -> UUID:
            run = await client.create_flow_run_from_deployment(
                deployment,
                parameters={
                    "question": f"How many customers do we have? ({number})",
                    "database": "demo",
                    "slo_s": 3600,
                },
                state=Scheduled(),
            )
            return run.id

        return list(await asyncio.gather(*(create(number) for number in range(questions))))

    def answered(self) -> int:
        """How many queries have been answered."""
        query = tables.queries.c
        statement = select(func.count()).where(query.state == "answered")
        return int(self.store.read(lambda connection: connection.execute(statement).scalar_one()))

    async def when_answered(self, count: int) -> None:
        """Wait until so many queries have been answered."""

        async def enough() -> bool:
            return await asyncio.to_thread(self.answered) >= count

        await until(enough, f"{count} queries answered")

    async def busy_instance(self) -> str:
        """The instance that runs most, once any runs something."""

        async def busiest() -> str | None:
            views = await asyncio.to_thread(self.store.read, instance_views)
            occupied = {name: view.occupied for name, view in views.items()}
            most = max(occupied, key=lambda name: occupied[name])
            return most if occupied[most] else None

        return await until(busiest, "an instance that runs something")

    async def ends(self, client: PrefectClient, ids: list[UUID]) -> list[FlowRun]:
        """The flow runs, once all are in a final state."""

        async def ended() -> list[FlowRun] | None:
            runs = await client.read_flow_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids))
            )
            final = [run for run in runs if run.state is not None and run.state.is_final()]
            return final if len(final) == len(ids) else None

        return await until(ended, "all flow runs ended")

    async def task_runs(self, client: PrefectClient, ids: list[UUID]) -> list[TaskRun]:
        """The task runs of the flow runs, once all are in a final state."""
        seen: list[TaskRun] = []

        async def ended() -> bool:
            seen[:] = await read_task_runs(client, ids)
            return all(run.state is not None and run.state.is_final() for run in seen)

        await until(ended, f"all task runs ended: {[(r.name, r.state_name) for r in seen]}")
        return seen

    async def check_store(self) -> tuple[int, str]:
        """What `hexprefect store check` says: its exit status and its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hexprefect", "store", "check"),
            env=dict(self.running.environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


async def read_task_runs(client: PrefectClient, ids: list[UUID]) -> list[TaskRun]:
    """All task runs of the flow runs, page by page."""
    found: list[TaskRun] = []
    while True:
        page = await client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)),
            limit=200,
            offset=len(found),
        )
        found += page
        if len(page) < 200:
            return found


async def until_healthy(url: str, child: Child) -> None:
    """Wait until a server answers."""

    async def healthy() -> bool:
        assert not child.has_ended, child.last_lines()
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(url, timeout=2)).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

    await until(healthy, url)


@asynccontextmanager
async def burning_stack(
    state: Path, *, prefect_database: str | None = None
) -> AsyncIterator[BurningStack]:
    """Start everything.

    Args:
        state: folder for stores and logs.
        prefect_database: URL (`postgresql+asyncpg://…`) of an empty database with `pg_trgm`; an
            SQLite file by default, which holds few flow runs at once.
    """
    folders = Folders(state)
    await asyncio.to_thread(upgrade, folders.store_url)
    ports = {name: free_port() for name in ("prefect-server", *SPEEDS)}
    api_url = f"http://127.0.0.1:{ports['prefect-server']}/api"
    environment = {
        **client_environment(folders.prefect_home, api_url),
        "HEXPREFECT_STORE": folders.store_url,
        "HEXPREFECT_STATE": str(folders.state),
        "HEXPREFECT_LEASE_S": "15",
        f"{WORKER}HEARTBEAT_SECONDS": "2",
        f"{WORKER}RECOVERY_SECONDS": "2",
    }
    repository = find_repository()

    def child(name: str, *command: str, **changed: str) -> Child:
        return Child(
            name,
            [sys.executable, *command],
            environment={**environment, **changed},
            log_folder=folders.logs,
            working_folder=repository,
        )

    server_settings = {**SERVER_SETTINGS, **FEW_SERVICES, "PREFECT_API_URL": ""}
    if prefect_database is not None:
        server_settings["PREFECT_API_DATABASE_CONNECTION_URL"] = prefect_database
    here = Path(__file__).parent
    children = {
        name: child(
            name, str(here / "emulated_instance.py"), name, str(ports[name]), str(SPEEDS[name])
        )
        for name in SPEEDS
    }
    children["prefect-server"] = child(
        "prefect-server",
        *("-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"),
        *("--host", "127.0.0.1", "--port", str(ports["prefect-server"])),
        **server_settings,
    )
    children["worker"] = child(
        "worker",
        *("-m", "prefect", "worker", "start", "--pool", "text2sql"),
        *("--type", "hexgen", "--name", "fire"),
    )
    specs = tuple(
        InstanceSpec(
            name=name,
            pool=name,
            url=f"http://127.0.0.1:{ports[name]}",
            model="emulated",
            speaks="vllm",
            profile=default_profile("a100"),
            slots=SLOTS,
        )
        for name in SPEEDS
    )
    running = RunningStack(folders, repository, api_url, environment, specs)
    store = await asyncio.to_thread(Store, folders.store_url)
    stack = BurningStack(running, store, children)
    async with AsyncExitStack() as stopping:
        for started in children.values():
            stopping.push_async_callback(started.stop)
        stopping.callback(store.close)
        await asyncio.gather(*(stack.start(name) for name in ("prefect-server", *SPEEDS)))
        await create_pools(running, "hexgen")
        await stopping.enter_async_context(entered(running))
        await stack.start("worker")
        yield stack
