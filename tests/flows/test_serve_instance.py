"""`serve-instance` as an operator runs it: pools, a worker, a deployment, Cancel, and kill -9.

A real Prefect server and a real worker process; `vllm` is a stand-in that takes its arguments.
"""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.states import Cancelling
from pydantic import SecretStr

from hexprefect.completion import Completion, Message, Prompt
from hexprefect.embedded.children import Child, free_port
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.prefect_server import client_environment, prefect_server
from hexprefect.embedded.stack import RunningStack, find_repository
from hexprefect.orchestration.pools_apply import apply_pools
from hexprefect.orchestration.serving import STOPPED
from hexprefect.queue import SharedQueue
from hexprefect.store import InstanceView, Store, check_laws, upgrade
from hexprefect.store.views import instance_views

STAND_IN = Path(__file__).parents[1] / "instances" / "stand_in_vllm.py"
LIMIT_S = 240.0
NAME = "a100-launched-1"
KEY = "sk-never-to-be-seen"
WORKER = "PREFECT_INTEGRATIONS_HEXPREFECT_WORKER_"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while not (seen := await asyncio.to_thread(look)):  # noqa: ASYNC110 (only looking tells)
            await asyncio.sleep(0.1)
        return seen


@dataclass
class Bench:
    """A Prefect server with the GPU pools and their deployments, and workers."""

    stack: RunningStack
    store: Store
    folder: Path
    client: PrefectClient
    exits: AsyncExitStack
    workers: list[Child] = field(default_factory=list)

    async def start_worker(self, name: str) -> Child:
        environment = {
            **self.stack.environment,
            f"{WORKER}HEARTBEAT_SECONDS": "1",
            f"{WORKER}RECOVERY_SECONDS": "1",
            f"{WORKER}SHUTDOWN_SECONDS": "1",
        }
        command = [sys.executable, "-m", "prefect", "worker", "start"]
        worker = Child(
            name,
            [*command, "--pool", "a100", "--type", "hexgen", "--name", name],
            environment=environment,
            log_folder=self.stack.folders.logs,
            working_folder=self.stack.repository,
        )
        return await self.exits.enter_async_context(worker)

    async def launch(self, **values: Any) -> None:
        """Change how the pool launches."""
        pool = await self.client.read_work_pool("a100")
        template = copy.deepcopy(pool.base_job_template)
        properties = template["variables"]["properties"]
        properties["launch"]["default"] = {**properties["launch"]["default"], **values}
        properties["api_key_secret"]["default"] = "vllm-key"
        properties["model"]["default"] = "tiny"
        await self.client.update_work_pool("a100", WorkPoolUpdate(base_job_template=template))

    async def run(self, **parameters: Any) -> UUID:
        deployment = await self.client.read_deployment_by_name("serve-instance/a100")
        run = await self.client.create_flow_run_from_deployment(
            deployment.id, parameters=parameters
        )
        return run.id

    async def final_state(self, run: UUID) -> Any:
        async with asyncio.timeout(LIMIT_S):
            while True:
                state = (await self.client.read_flow_run(run)).state
                if state is not None and state.is_final():
                    return state
                await asyncio.sleep(0.2)

    async def cancel(self, run: UUID) -> None:
        await self.client.set_flow_run_state(run, Cancelling(), force=True)

    def view(self) -> InstanceView | None:
        return self.store.read(instance_views).get(NAME)

    def is_alive(self) -> bool:
        view = self.view()
        return view is not None and view.state == "alive"

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    async def ask(self) -> Completion:
        async def secret(name: str) -> SecretStr:
            assert name == "vllm-key"
            return SecretStr(KEY)

        async with SharedQueue(self.store.url, resolve_secret=secret) as queue:
            query = await queue.query(slo_s=120.0)
            prompt = Prompt("judge", (Message("user", "How many?"),), max_output_tokens=8)
            completion = await query.complete(prompt)
            await query.end("answered")
            return completion

    async def said(self, run: UUID) -> str:
        """Everything that Prefect shows of a flow run: logs and artifacts."""
        logs = await self.client.read_logs(
            LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])), limit=200
        )
        artifacts = await self.client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
        )
        return "\n".join([*(log.message for log in logs), *(str(a.data) for a in artifacts)])


@asynccontextmanager
async def new_bench(folder: Path) -> AsyncIterator[Bench]:
    folders = Folders(folder / "state")
    command = folder / "vllm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    command.chmod(0o755)
    upgrade(folders.store_url)
    async with AsyncExitStack() as exits:
        api_url = await exits.enter_async_context(
            prefect_server(folders.prefect_home, folders.logs)
        )
        environment = {
            **client_environment(folders.prefect_home, api_url),
            "HEXPREFECT_STORE": folders.store_url,
            "HEXPREFECT_STATE": str(folders.state),
            "HEXPREFECT_LEASE_S": "3",
        }
        stack = RunningStack(folders, find_repository(), api_url, environment, ())
        client = await exits.enter_async_context(PrefectClient(api_url))
        await apply_pools(client)
        await Secret(value=SecretStr(KEY)).save("vllm-key", client=client)
        store = Store(folders.store_url)
        exits.callback(store.close)
        bench = Bench(stack, store, folder, client, exits)
        await bench.launch(
            replicas=1,
            port=free_port(),
            tensor_parallel_size=1,
            executable=str(command),
            environment={"STAND_IN_PIDS": str(folder / "pids")},
        )
        await stack.prefect("deploy", "--prefect-file", "prefect.fleet.yaml", "--all")
        try:
            yield bench
        finally:
            await exits.aclose()
            for pid in filter(alive, bench.pids()):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(600)
async def test_an_instance_is_one_long_flow_run_until_it_is_cancelled(tmp_path: Path) -> None:
    async with new_bench(tmp_path) as bench:
        await bench.start_worker("first")
        run = await bench.run(drain_s=30)
        await until(bench.is_alive)
        flow_run = await bench.client.read_flow_run(run)
        assert flow_run.state is not None
        assert flow_run.state.is_running()
        assert (await bench.ask()).instance == NAME

        # A second run for the same replica is told who serves it, and disturbs nobody.
        second = await bench.final_state(await bench.run())
        assert second.is_failed()
        assert "is served by another flow run" in second.message

        await bench.cancel(run)
        assert (await bench.final_state(run)).is_cancelled()
        await until(lambda: not any(map(alive, bench.pids())))
        await until(lambda: (view := bench.view()) is not None and view.reason == STOPPED)
        said = await bench.said(run)
        assert "vllm serve tiny" in said
        assert f"`{NAME}`" in said
        assert KEY not in said

        # What cannot start says why, in the flow run's state.
        await bench.launch(environment={"STAND_IN_FAILS": "memory"})
        failed = await bench.final_state(await bench.run())
        assert failed.is_failed()
        assert "No available memory for the cache blocks" in failed.message
        beyond = await bench.final_state(await bench.run(replica=2))
        assert "there is no replica 2" in beyond.message
        now = bench.store.now()
        assert bench.store.read(lambda connection: check_laws(connection, now=now)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_killed_worker_leaves_no_vllm_and_another_worker_serves_again(
    tmp_path: Path,
) -> None:
    async with new_bench(tmp_path) as bench:
        first = await bench.start_worker("first")
        run = await bench.run(drain_s=30)
        await until(bench.is_alive)
        before = bench.pids()
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: not any(map(alive, before)))

        await bench.start_worker("second")
        await until(lambda: len(bench.pids()) == 4)
        await until(bench.is_alive)
        assert (await bench.ask()).instance == NAME
        flow_run = await bench.client.read_flow_run(run)
        assert flow_run.state is not None
        assert flow_run.state.is_running(), "it is the same flow run"

        # A worker that is stopped takes its servers with it, too.
        await bench.exits.aclose()
        await until(lambda: not any(map(alive, bench.pids())))
