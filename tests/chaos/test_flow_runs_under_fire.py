"""Law 6 with everything real: flow runs survive the death of every process that serves them.

One small fire in which everything dies once, and 40 queries a fire:

    pytest tests/chaos/test_flow_runs_under_fire.py -m slow -s
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import PrefectClient
from sqlalchemy import select

from hexprefect.store import check_laws, tables
from hexprefect.store.fleet import set_instance_state
from hexprefect.store.views import instance_views
from tests.chaos.burning_stack import BurningStack, burning_stack, until
from tests.chaos.prefect_database import prefect_database

QUERIES = 40
Fire = Callable[[BurningStack], Awaitable[None]]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[BurningStack]:
    async with burning_stack(tmp_path) as running:
        yield running


@pytest.fixture
async def large_stack(tmp_path: Path) -> AsyncIterator[BurningStack]:
    with prefect_database() as url:
        if url is None:
            pytest.skip("no PostgreSQL with pg_trgm: Prefect on SQLite serves too few runs at once")
        async with burning_stack(tmp_path, prefect_database=url) as running:
            yield running


async def instance_dies(stack: BurningStack) -> None:
    """While it runs something; it comes back a moment later."""
    name = await stack.busy_instance()
    await stack.kill(name)
    await asyncio.sleep(1)
    await stack.start(name)


async def worker_dies(stack: BurningStack) -> None:
    """While instances work for it; the next one has its name."""
    await stack.busy_instance()
    await stack.kill("worker")
    await stack.start("worker")


async def server_dies(stack: BurningStack) -> None:
    """With its database left as it was; starting takes it some seconds."""
    await stack.busy_instance()
    await stack.kill("prefect-server")
    await asyncio.sleep(3)
    await stack.start("prefect-server")


async def instance_drains(stack: BurningStack) -> None:
    """By an operator's command, while it runs something."""
    name = await stack.busy_instance()
    await stack.store.run(
        lambda tx: set_instance_state(tx, name, "draining", reason="by an operator")
    )


async def burn(stack: BurningStack, waves: Sequence[tuple[int, Fire]]) -> None:
    """Ask some questions, set a fire while they run, ask more; then hold everything to the laws."""
    ids: list[UUID] = []
    async with PrefectClient(stack.running.api_url) as client:
        for questions, fire in waves:
            ids += await stack.ask(client, questions)
            await fire(stack)
        runs = await stack.ends(client, ids)
        messages = {run.state.message for run in runs if run.state and not run.state.is_completed()}
        assert Counter(run.state_name for run in runs) == {"Completed": len(ids)}, messages
        await stack.task_runs(client, ids)
    await hold_to_the_laws(stack, ids)


async def hold_to_the_laws(stack: BurningStack, ids: list[UUID]) -> None:
    queries = rows(stack, tables.queries)
    assert {row["id"] for row in queries} == {str(id) for id in ids}
    assert Counter(row["state"] for row in queries) == {"answered": len(ids)}
    assert {row["answer"]["rows"][0][0] for row in queries} == {400}
    requests = rows(stack, tables.requests)
    assert {row["state"] for row in requests} <= {"finished", "failed", "cancelled"}
    finished = Counter(
        row["request_id"] for row in rows(stack, tables.attempts) if row["outcome"] == "finished"
    )
    assert set(finished.values()) == {1}, "a finished request ran again"

    async def idle() -> bool:
        views = stack.store.read(instance_views).values()
        return all((view.backlog_s, view.waiting, view.occupied) == (0, 0, 0) for view in views)

    await until(idle, "idle instances without a backlog")
    now = stack.store.now()
    assert stack.store.read(lambda connection: check_laws(connection, now=now)) == []


def rows(stack: BurningStack, table: Any) -> list[dict[str, Any]]:
    return stack.store.read(lambda c: [row._asdict() for row in c.execute(select(table))])


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_queries_survive_the_death_of_everything(stack: BurningStack) -> None:
    await burn(
        stack, [(3, instance_dies), (3, worker_dies), (3, server_dies), (3, instance_drains)]
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fire", [instance_dies, worker_dies, server_dies])
async def test_forty_queries_survive(large_stack: BurningStack, fire: Fire) -> None:
    await burn(large_stack, [(QUERIES // 2, fire), (QUERIES // 2, fire)])
    status, said = await large_stack.check_store()
    assert status == 0, said


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_draining_an_instance_fails_no_request(large_stack: BurningStack) -> None:
    await burn(large_stack, [(QUERIES, instance_drains)])
    assert {row["state"] for row in rows(large_stack, tables.requests)} == {"finished"}
    assert {row["outcome"] for row in rows(large_stack, tables.attempts)} <= {"finished", "moved"}
    states = {view.state for view in large_stack.store.read(instance_views).values()}
    assert "draining" in states, "the operator's word was undone"
