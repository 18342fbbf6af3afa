"""What a task costs beside its work: Prefect's own runner, ours, and LLM tasks through the queue.

Only ratios within one run are asserted: the machine may be busy with other things.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prefect import flow, task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, SeenByPrefect, prompt_of
from tests.orchestration.conftest import (  # noqa: F401
    empty_store,
    fleet,
    prefect_server,
    seen_by_prefect,
)

TASKS = 60
ROUNDS = 3
ONE_BY_ONE = 100


@task
async def nothing(number: int) -> int:
    return number


@llm_task(stage="ask", expected_output_tokens=4)
async def ask(number: int) -> str:
    return (await current_request().complete(prompt_of(str(number)))).text


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def seconds_a_task(runner: TaskRunner[Any], which: Any) -> float:
    """In a burst: the flow's end is waited for, its start is not counted."""
    took: list[float] = []

    @flow(task_runner=runner)
    async def burst() -> None:
        began = time.perf_counter()
        futures: list[Any] = [which.submit(number) for number in range(TASKS)]
        # In a thread, because Prefect's own futures block.
        await asyncio.to_thread(lambda: [future.wait() for future in futures])
        assert all(future.state.is_completed() for future in futures)
        took.append((time.perf_counter() - began) / TASKS)

    await burst()
    return took[0]


@pytest.mark.benchmark
@pytest.mark.slow
async def test_a_task_costs_less_than_with_prefects_own_runner(
    fleet: Fleet,  # noqa: F811
    seen_by_prefect: SeenByPrefect,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet.add("a", slots=TASKS)
    kinds: dict[str, tuple[Callable[[], TaskRunner[Any]], Any]] = {
        "Prefect's thread runner": (ThreadPoolTaskRunner, nothing),
        "ours, ordinary tasks": (HexgenTaskRunner, nothing),
        "ours, LLM tasks": (HexgenTaskRunner, ask),
    }
    for runner, which in kinds.values():
        await seconds_a_task(runner(), which)
    measured: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        # In turn, so that a busy moment meets all of them.
        for name, (runner, which) in kinds.items():
            measured[name].append(await seconds_a_task(runner(), which))
    medians = {name: statistics.median(values) for name, values in measured.items()}
    with capsys.disabled():
        print(f"\n{TASKS} async tasks at once, median of {ROUNDS}, {_load()}:")
        for name, seconds in medians.items():
            print(f"  {name}: {seconds * 1000:.1f} ms a task")
    theirs, ordinary, llm = medians.values()
    assert ordinary < theirs / 2
    assert llm < theirs
    assert fleet.violations() == []


@pytest.mark.benchmark
async def test_how_soon_a_ready_task_is_on_its_instance(
    fleet: Fleet,  # noqa: F811
    seen_by_prefect: SeenByPrefect,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From `submit` to the request's arrival at an idle instance, one task at a time."""
    instance = fleet.add("a", slots=4)
    submitted: list[float] = []
    took: list[float] = []

    @flow(task_runner=HexgenTaskRunner())
    async def one_by_one() -> None:
        for number in range(ONE_BY_ONE):
            submitted.append(time.time())
            await ask.submit(number)
            took.append(time.time() - submitted[-1])

    await one_by_one()
    to_instance = sorted(at - since for at, since in zip(instance.asked_at, submitted, strict=True))
    ready_to_granted = sorted(
        row["started_at"] - row["ready_at"] for row in fleet.rows(tables.requests)
    )
    with capsys.disabled():
        print(
            f"\nsubmit → arrival at the instance: median {_ms(to_instance, 50)}, "
            f"p99 {_ms(to_instance, 99)}; whole task: median {_ms(sorted(took), 50)}, "
            f"p99 {_ms(sorted(took), 99)}; {_load()}"
        )
    assert instance.asked == [str(number) for number in range(ONE_BY_ONE)]
    # An idle instance's slot is given in the transaction that submits.
    assert ready_to_granted[-1] == 0


def _ms(ordered: list[float], percent: int) -> str:
    return f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000:.1f} ms"


def _load() -> str:
    return "load " + " ".join(f"{value:.1f}" for value in os.getloadavg())
