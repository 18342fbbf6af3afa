"""The whole stack on this machine: server, store, pools, deployments, a worker, two instances."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hexprefect.embedded.children import Child, ChildFailed
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.local_fleet import SCHEMA_TOKENS, local_fleet, prefer_the_fast
from hexprefect.embedded.prefect_server import client_environment, prefect_server
from hexprefect.errors import CallerMistake
from hexprefect.store import InstanceSpec, Store, upgrade
from hexprefect.store.fleet import set_instance_state
from hexprefect.store.transaction import Transaction

FLOWS_POOL = "text2sql"
COMMAND_TIMEOUT_S = 120.0
STOPPED = "stopped with the stack"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunningStack:
    """What a caller needs of a stack that runs."""

    folders: Folders
    repository: Path
    api_url: str
    environment: Mapping[str, str]
    instances: tuple[InstanceSpec, ...]

    @property
    def store_url(self) -> str:
        """Of the store."""
        return self.folders.store_url

    @property
    def ui_url(self) -> str:
        """Of Prefect's UI."""
        return self.api_url.removesuffix("/api")

    async def prefect(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run one of Prefect's own commands against the stack's server; its output.

        Raises:
            ChildFailed: with the end of that output.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "prefect", "--no-prompt", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(self.environment),
            cwd=self.repository,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        text = output.decode(errors="replace")
        if process.returncode != 0:
            raise ChildFailed(f"`prefect {' '.join(arguments)}` failed:\n{text[-2000:]}")
        return text


def find_repository() -> Path:
    """The checkout with `prefect.yaml`, which names the flows to deploy.

    Raises:
        CallerMistake: when this package was installed without one and none is the current folder.
    """
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "prefect.yaml").is_file() and (folder / "flows" / "text2sql.py").is_file():
            return folder
    raise CallerMistake(
        "There is no prefect.yaml of hexprefect here.",
        remedy="Run this in a checkout, or ask without a stack: `hexprefect ask … --in-process`.",
    )


@asynccontextmanager
async def embedded_stack(
    folders: Folders, *, model: str, tell: Tell, worker_type: str = "hexgen"
) -> AsyncIterator[RunningStack]:
    """Start everything, and stop everything at the end, however it ends.

    Args:
        folders: the stack's state, reused by the next one.
        model: of the two local instances.
        tell: is told what is being done.
        worker_type: `hexgen` for the warm worker, `process` for a process for each flow run.

    Raises:
        CallerMistake: there are no flows here, or a stack runs in these folders already.
    """
    repository = find_repository()
    async with AsyncExitStack() as stack:
        stack.enter_context(folders.of_one_stack())
        tell("Creating the store, starting the Prefect server and two local instances")
        await asyncio.to_thread(upgrade, folders.store_url)
        api_url, instances = await asyncio.gather(
            stack.enter_async_context(prefect_server(folders.prefect_home, folders.logs)),
            stack.enter_async_context(local_fleet(model=model)),
        )
        environment = {
            **client_environment(folders.prefect_home, api_url),
            "HEXPREFECT_STORE": folders.store_url,
            "HEXPREFECT_STATE": str(folders.state),
            "HEXPREFECT_SCHEMA_TOKENS": str(SCHEMA_TOKENS),
        }
        running = RunningStack(folders, repository, api_url, environment, instances)
        tell("Creating the work pools, entering the instances, deploying the flows")
        await create_pools(running, worker_type)
        await stack.enter_async_context(entered(running))
        await running.prefect("deploy", "--all")
        tell("Starting the worker")
        worker = Child(
            "worker",
            [
                *(sys.executable, "-m", "prefect", "worker", "start"),
                *("--pool", FLOWS_POOL, "--type", worker_type, "--name", "embedded"),
            ],
            environment={**environment, "PREFECT_WORKER_QUERY_SECONDS": "1"},
            log_folder=folders.logs,
            working_folder=repository,
        )
        await stack.enter_async_context(worker)
        yield running


async def create_pools(running: RunningStack, worker_type: str) -> None:
    """The pool of the flows, and one for each instance, described in it as the fleet is read."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.actions import WorkPoolCreate

    from hexprefect.orchestration.pools import set_pool_instances

    templates = running.repository / "work_pools"
    wanted = [(FLOWS_POOL, worker_type, "text2sql.json")]
    wanted += [(spec.pool, "hexgen", "local.json") for spec in running.instances]
    async with PrefectClient(running.api_url) as client:
        for pool, kind, template in wanted:
            text = await asyncio.to_thread((templates / template).read_text, encoding="utf-8")
            create = WorkPoolCreate(name=pool, type=kind, base_job_template=json.loads(text))
            await client.create_work_pool(create, overwrite=True)
        for spec in running.instances:
            instance = {
                "name": spec.name,
                "url": spec.url,
                "model": spec.model,
                "speaks": spec.speaks,
                "slots": spec.slots,
                "profile": spec.profile.name,
                "context_tokens": spec.context_tokens,
            }
            await set_pool_instances(client, spec.pool, [instance])


@asynccontextmanager
async def entered(running: RunningStack) -> AsyncIterator[None]:
    """The instances in the store, read from their pools, for as long as they run."""
    from prefect.client.orchestration import PrefectClient

    from hexprefect.orchestration.fleet_sync import synchronise_fleet

    store = await asyncio.to_thread(Store, running.store_url)
    names = [spec.name for spec in running.instances]

    def alive(tx: Transaction) -> None:
        prefer_the_fast(tx)
        for name in names:
            set_instance_state(tx, name, "alive")

    def stopped(tx: Transaction) -> None:
        for name in names:
            set_instance_state(tx, name, "dead", reason=STOPPED)

    try:
        async with PrefectClient(running.api_url) as client:
            await synchronise_fleet(client, store)
        await store.run(alive)
        yield
    finally:
        await asyncio.shield(store.run(stopped))
        await asyncio.to_thread(store.close)
