"""A work pool of a real server, its deployments, and the warm workers that a test starts."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling, Scheduled

from hexprefect.orchestration.pools_apply import read_templates

T = TypeVar("T")
LIMIT_S = 150.0
"""Waits end here; nothing is asserted about how long they took."""


@dataclass
class Bench:
    """A pool, its deployments, and the workers that a test starts."""

    client: PrefectClient
    environment: dict[str, str]
    directory: Path
    pool: str
    notes: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def start_worker(self, name: str, **settings: Any) -> subprocess.Popen[bytes]:
        worker = self._spawn(name, {"heartbeat_seconds": 2, "recovery_seconds": 2, **settings})
        self.workers.append(worker)

        async def started() -> bool:
            assert worker.poll() is None, self.log(name)
            return "started!" in self.log(name)

        await until(started)
        return worker

    def _spawn(self, name: str, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        prefix = "PREFECT_INTEGRATIONS_HEXPREFECT_WORKER_"
        environment = {f"{prefix}{key.upper()}": str(value) for key, value in settings.items()}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", self.pool]
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--name", name],
                env={**self.environment, **environment},
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A worker that inherits an ignored SIGINT would ignore its own shutdown.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    async def deploy(self, entry: str, *, file: str = "flows.py", **options: Any) -> UUID:
        flow_id = await self.client.create_flow_from_name(entry.replace("_", "-"))
        return await self.client.create_deployment(
            flow_id,
            name=self.pool,
            entrypoint=f"{file}:{entry}",
            path=str(self.directory),
            work_pool_name=self.pool,
            **options,
        )

    async def run(self, entry: str, *, wait: bool = True, **parameters: Any) -> FlowRun:
        return await self.run_deployed(await self.deploy(entry), wait=wait, parameters=parameters)

    async def run_deployed(self, deployment: UUID, *, wait: bool = True, **options: Any) -> FlowRun:
        flow_run = await self.client.create_flow_run_from_deployment(
            deployment, state=Scheduled(), **options
        )
        return await self.end_of(flow_run) if wait else flow_run

    async def end_of(self, flow_run: FlowRun) -> FlowRun:
        async def ended() -> FlowRun | None:
            seen = await self.client.read_flow_run(flow_run.id)
            return seen if seen.state is not None and seen.state.is_final() else None

        return await until(ended)

    def _lines(self) -> list[str]:
        path = Path(self.notes)
        return path.read_text().splitlines() if path.exists() else []

    async def noted(self, count: int = 1) -> list[dict[str, Any]]:
        async def enough() -> list[dict[str, Any]] | None:
            lines = self._lines()
            return [json.loads(line) for line in lines] if len(lines) >= count else None

        return await until(enough)

    async def cancel(self, flow_run: FlowRun) -> None:
        await self.client.set_flow_run_state(flow_run.id, Cancelling())


async def until(found: Callable[[], Awaitable[T | None]]) -> T:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if result := await found():
            return result
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within {LIMIT_S} s: {found}")


def state_of(flow_run: FlowRun) -> tuple[str, str]:
    assert flow_run.state is not None
    return flow_run.state.name, flow_run.state.message or ""


@asynccontextmanager
async def worker_bench(
    client: PrefectClient, environment: dict[str, str], directory: Path, flows: str
) -> AsyncIterator[Bench]:
    """A pool of its own in a folder with `flows.py`; ends the workers that were started."""
    pool = f"flows-{uuid4().hex[:8]}"
    (directory / "flows.py").write_text(flows)
    await client.create_work_pool(
        WorkPoolCreate(name=pool, type="hexgen", base_job_template=read_templates()["text2sql"])
    )
    bench = Bench(
        client=client,
        environment=environment,
        directory=directory,
        pool=pool,
        notes=str(directory / "notes.jsonl"),
    )
    try:
        yield bench
    finally:
        for worker in bench.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait(timeout=10)
        await client.delete_work_pool(pool)
