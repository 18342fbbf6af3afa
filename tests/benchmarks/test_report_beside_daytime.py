"""200 daytime queries and one report at once: the report is in time, and the day hardly notices.

    HEXPREFECT_DAYTIME_QUERIES=200 pytest -m benchmark -s tests/benchmarks -k beside

Both runs, without the report and with it, have the same arrivals, the same two unequal servers and
the same process; a JSON line says what each attained.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.emulator import Emulator, EngineOptions
from hexprefect.queue import Query, SharedQueue
from hexprefect.reports.file import Report
from hexprefect.reports.parameters import parameters_of
from hexprefect.reports.running import Asked, Night, Ran, run_items
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, Store, check_laws, upgrade
from hexprefect.store.fleet import enter_instance
from hexprefect.store.statistics import ended_queries, window_of
from hexprefect.text2sql import Database
from hexprefect.text2sql.workflow import TEXT2SQL_WORKFLOW

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]

QUERIES = int(os.environ.get("HEXPREFECT_DAYTIME_QUERIES", "60"))
QUESTIONS = max(5, QUERIES // 10)
"""Of the report."""

SERVERS = {"fast": (0.25, 4), "slow": (0.5, 2)}
"""Seconds a call, slots: 20 calls a second, and a query has four."""

RATE = 2.5
"""Queries a second: half of what the servers can do. In an overload, late queries make way by
design, and whatever is added is felt."""

SLO_S = 5.0
DUE_S = 2.0 * QUERIES / RATE
MOST_LOSS = 0.05


def prompt(stage: str, text: str, branch: str | None = None) -> Prompt:
    return Prompt(stage, (Message("user", text),), max_output_tokens=10, branch=branch)


async def four_calls(query: Query, text: str) -> None:
    """Link, two candidates side by side, judge."""
    await query.complete(prompt("schema_linking", text))
    await asyncio.gather(
        *(
            query.complete(prompt("candidate_generation", text, f"candidate-{number}"))
            for number in (1, 2)
        )
    )
    await query.complete(prompt("judge", text))
    await query.end("answered")


async def daytime(queue: SharedQueue, name: str) -> None:
    """Queries at random times, the same in every run."""
    chance = random.Random(7)

    async def one(number: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        query = await queue.query(
            slo_s=SLO_S, id=f"{name}-{number}", database="shop", workflow=TEXT2SQL_WORKFLOW
        )
        await four_calls(query, f"question {number} of {name}")

    times, now = [], 0.0
    for _ in range(QUERIES):
        now += chance.expovariate(RATE)
        times.append(now)
    await asyncio.gather(*(one(number, after_s) for number, after_s in enumerate(times)))


async def report(queue: SharedQueue, folder: Path) -> tuple[Ran, float]:
    """The report's outcomes, and how many seconds before its time it was ready."""
    described = Report.model_validate(
        {
            "title": "r",
            "database": "shop",
            "at_once": 16,
            "items": [
                {"title": f"Item {number}", "question": f"What is {number}?", "pin": False}
                for number in range(QUESTIONS)
            ],
        }
    )
    date = datetime.date(2026, 12, 1)
    due_at = time.time() + DUE_S
    night = Night(
        report=described, date=date, parameters=parameters_of(described, date=date), due_at=due_at
    )

    async def ask(question: str, evidence: str, left_s: float) -> Asked:
        query = await queue.query(slo_s=left_s, database="shop", workflow=TEXT2SQL_WORKFLOW)
        await four_calls(query, question)
        return Asked("SELECT 1", ("n",), ("integer",), ((1,),))

    async with await Database.connect(f"sqlite:///{folder / 'shop.sqlite'}") as database:
        ran = await run_items(night, database=database, ask=ask)
    return ran, due_at - time.time()


async def run(folder: Path, *, with_report: bool) -> dict[str, Any]:
    name = "with" if with_report else "without"
    url = f"sqlite:///{folder / f'{name}.sqlite'}"
    upgrade(url)
    (folder / "shop.sqlite").touch()
    async with AsyncExitStack() as stack:
        store = Store(url)
        stack.callback(store.close)
        for server, (seconds, slots) in SERVERS.items():
            profile = Profile(server, 0.0, 0.0, seconds / 10)
            emulator = Emulator(profile, name=server, options=EngineOptions(max_num_seqs=slots))
            endpoint = await stack.enter_async_context(emulator)
            spec = InstanceSpec(
                server, endpoint.url, profile, slots, model=endpoint.model, speaks="vllm"
            )
            store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
        queue = await stack.enter_async_context(SharedQueue(url))
        work: list[Any] = [daytime(queue, name)]
        if with_report:
            work.append(report(queue, folder))
        results = await asyncio.gather(*work)
        now = store.now()
        ended = store.read(lambda connection: ended_queries(connection, after=0.0, until=now))
        day = window_of([row for row in ended if row["deadline"] - row["arrived_at"] <= SLO_S], 1)
        assert store.read(lambda connection: check_laws(connection, now=now)) == []
    figures: dict[str, Any] = {
        "queries": day.answered,
        "attainment": day.attainment,
        "p95_s": day.percentile_s(0.95),
    }
    if with_report:
        ran, early_s = results[1]
        figures["report"] = {
            "items": len(ran.outcomes),
            "answered": sum(one.state == "answered" for one in ran.outcomes),
            "early_s": round(early_s, 1),
        }
    return figures


async def test_a_report_is_in_time_and_the_day_hardly_notices(tmp_path: Path) -> None:
    without = await run(tmp_path, with_report=False)
    beside = await run(tmp_path, with_report=True)
    print("\n" + json.dumps({"without": without, "with": beside}))
    assert beside["report"]["answered"] == QUESTIONS
    assert beside["report"]["early_s"] >= 0
    assert beside["queries"] == without["queries"] == QUERIES
    # One query of a small run is more than five in a hundred.
    assert beside["attainment"] >= without["attainment"] - max(MOST_LOSS, 1.5 / QUERIES)
