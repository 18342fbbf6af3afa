"""Flow runs in many processes share one queue, through Prefect, over unequal instances.

`HEXPREFECT_TEST_RUNS_EACH` is the number of flow runs of each process: 3 by default, 25 in full
size, for which Prefect's server should be on PostgreSQL (`HEXPREFECT_TEST_PREFECT_API_URL`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hexprefect.store import tables
from tests.orchestration.bench import Fleet
from tests.orchestration.conftest import (  # noqa: F401
    PrefectServer,
    empty_store,
    fleet,
    prefect_server,
)

PROCESSES = 4
RUNS_EACH = int(os.environ.get("HEXPREFECT_TEST_RUNS_EACH", "3"))
TASKS_EACH = 6
AT_ONCE = 2 if RUNS_EACH < 10 else 5
"""Flow runs at once in each process: more would measure Prefect's server on SQLite."""
SECONDS = {"fast": 0.05, "middle": 0.1, "slow": 0.2}
SLOTS = 2

PROGRAM = f"""
import asyncio, json, sys, time
from prefect import flow, task
from hexprefect.completion import Message, Prompt
from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner

@llm_task(stage="ask", expected_output_tokens=4)
async def ask(text: str, *needs) -> str:
    prompt = Prompt(stage="ask", messages=(Message("user", text),), max_output_tokens=16)
    return (await current_request().complete(prompt)).text

@task
async def count(answers) -> int:
    return len(answers)

@flow(task_runner=HexgenTaskRunner(slo_s=600))
async def query(name: str) -> int:
    first = ask.submit(f"{{name}} first")
    middle = [ask.submit(f"{{name}} {{n}}", first) for n in range({TASKS_EACH} - 2)]
    last = ask.submit(f"{{name}} last", middle)
    return await count.submit([first, *middle, last])

async def main():
    gate = asyncio.Semaphore({AT_ONCE})
    async def one(number):
        async with gate:
            began = time.monotonic()
            counted = await query(f"{{sys.argv[1]}}-{{number}}")
            return counted, time.monotonic() - began
    done = await asyncio.gather(*(one(number) for number in range({RUNS_EACH})))
    print("DONE", json.dumps(done))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_flow_runs_in_many_processes_share_one_queue(
    fleet: Fleet,  # noqa: F811
    prefect_server: PrefectServer,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, seconds in SECONDS.items():
        fleet.add(name, slots=SLOTS, seconds=seconds)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {
        **prefect_server.environment,
        "HEXPREFECT_STORE": fleet.url,
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    began = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), f"p{number}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in range(PROCESSES)
    ]
    try:
        with ThreadPoolExecutor(PROCESSES) as threads:
            outputs = list(threads.map(lambda process: process.communicate(timeout=850), processes))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)
    took_s = time.monotonic() - began

    texts = [output.decode() for output, _ in outputs]
    assert [process.returncode for process in processes] == [0] * PROCESSES, "\n".join(texts)[
        -8000:
    ]
    done = [run for text in texts for run in json.loads(text.split("DONE ", 1)[1].splitlines()[0])]
    assert [counted for counted, _ in done] == [TASKS_EACH] * (PROCESSES * RUNS_EACH)

    requests = fleet.rows(tables.requests)
    assert len(requests) == PROCESSES * RUNS_EACH * TASKS_EACH
    assert {row["state"] for row in requests} == {"finished"}
    assert {row["attempt"] for row in requests} == {1}
    assert {row["state"] for row in fleet.rows(tables.queries)} == {"answered"}
    assert fleet.rows(tables.processes) == []
    assert fleet.occupied() == 0
    assert fleet.backlog_s() == 0
    assert fleet.violations() == []

    served = Counter(row["instance"] for row in requests)
    asked = {name: len(stand_in.asked) for name, stand_in in fleet.instances.items()}
    assert served == asked, "each request was sent once, to where it was granted"
    assert all(stand_in.most_running <= SLOTS for stand_in in fleet.instances.values())
    assert served["fast"] > served["middle"] > served["slow"], served
    waits = sorted(row["started_at"] - row["ready_at"] for row in requests)
    with capsys.disabled():
        load = " ".join(f"{value:.1f}" for value in os.getloadavg())
        print(
            f"\n{PROCESSES} processes × {RUNS_EACH} flow runs × {TASKS_EACH} LLM tasks: "
            f"{took_s:.1f} s, shares {dict(served)}, waited median {waits[len(waits) // 2]:.3f} s "
            f"p99 {waits[len(waits) * 99 // 100]:.3f} s, flow run median "
            f"{sorted(seconds for _, seconds in done)[len(done) // 2]:.2f} s, load {load}"
        )
