"""`hexprefect demo` and `hexprefect up`: the whole stack on this machine, with real models."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hexprefect.commands.ask import exit_code
from hexprefect.commands.output import Json, err, errors_for_people, out, print_json, run
from hexprefect.commands.queries import print_answer
from hexprefect.embedded.children import ChildFailed
from hexprefect.embedded.folders import Folders, default_folders
from hexprefect.embedded.stack import RunningStack, embedded_stack
from hexprefect.errors import NoAnswer
from hexprefect.store import Store
from hexprefect.store.values import UnknownQuery
from hexprefect.store.views import query_record
from hexprefect.urls import refuse_secrets

DEFAULT_QUESTION = "How many customers live in each city? Give the city and the number."
ANSWER_TIMEOUT_S = 900.0

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="HEXPREFECT_STATE",
        help="Folder of the stack's state; the next run reuses it.",
        show_envvar=True,
    ),
]
Model = Annotated[str, typer.Option(help="Model of the two local instances: 0.5B or 1.5B.")]
WorkerType = Annotated[
    str, typer.Option("--worker", help="hexgen: a warm worker; process: a process for each run.")
]


def demo_command(
    question: Annotated[
        str, typer.Option("--question", "-q", help="What to ask.")
    ] = DEFAULT_QUESTION,
    database: Annotated[
        str, typer.Option("--database", "-d", help="`demo` is the shop that is shipped.")
    ] = "demo",
    slo: Annotated[float, typer.Option(help="Seconds until the answer is due.")] = 300.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep everything running until Ctrl-C, to look around.")
    ] = False,
    model: Model = "1.5B",
    worker: WorkerType = "hexgen",
    state: State = None,
    as_json: Json = False,
) -> None:
    """Start the whole stack, ask one question through Prefect, print the answer, stop everything.

    Two llama.cpp servers of different speed are the instances of two work pools. The question runs
    as `prefect deployment run text2sql/ask`. Nothing outside the state folder and the model cache
    is touched.
    """
    with errors_for_people(as_json=as_json):
        refuse_secrets(database)
        asked = {"question": question, "database": database, "slo_s": slo}
        record = run(_demo(asked, _folders(state), model, worker, keep, as_json))
    if as_json:
        print_json(record)
    raise typer.Exit(exit_code(record))


def up_command(model: Model = "1.5B", worker: WorkerType = "hexgen", state: State = None) -> None:
    """Start the whole stack and keep it running until Ctrl-C."""

    async def up() -> None:
        async with embedded_stack(
            _folders(state), model=model, tell=_tell, worker_type=worker
        ) as stack:
            _say_where(stack)
            await asyncio.Event().wait()

    with errors_for_people():
        run(up())


async def _demo(
    asked: dict[str, Any], folders: Folders, model: str, worker: str, keep: bool, as_json: bool
) -> dict[str, Any]:
    started = time.monotonic()
    async with embedded_stack(folders, model=model, tell=_tell, worker_type=worker) as stack:
        _tell("Asking: prefect deployment run text2sql/ask")
        record = await ask_deployment(stack, asked)
        if not as_json:
            print_answer(record)
            run_url = f"{stack.ui_url}/runs/flow-run/{record['flow_run_id']}"
            out.print(f"In the UI: {run_url}", soft_wrap=True, highlight=False)
            if not keep:
                out.print("Keep it running to look there: make demo KEEP=1, or make up.")
        if keep:
            _say_where(stack)
            await asyncio.Event().wait()
    err.print(f"Everything is stopped. {time.monotonic() - started:.0f} s in all.")
    return record


async def ask_deployment(stack: RunningStack, asked: dict[str, Any]) -> dict[str, Any]:
    """Ask through Prefect's own command, and read the answer from the store.

    Raises:
        ChildFailed: when the flow run did not complete and left no answer.
    """
    parameters = [
        argument
        for name, value in asked.items()
        for argument in ("-p", f"{name}={json.dumps(value)}")
    ]
    arguments = ("deployment", "run", "text2sql/ask", *parameters, "--watch")
    failure: ChildFailed | None = None
    try:
        said = await stack.prefect(*arguments, timeout_s=ANSWER_TIMEOUT_S)
    except ChildFailed as failed:
        said, failure = str(failed), failed
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", said)
    if found is None:
        raise failure or NoAnswer(f"Prefect did not say which flow run it made:\n{said[-1000:]}")
    store = Store(stack.store_url)
    try:
        known = await store.read_async(lambda connection: query_record(connection, found.group()))
    except UnknownQuery:
        raise NoAnswer(
            f"The flow run {found.group()} ended before it reached the queue.",
            remedy=f"See {stack.folders.logs / 'worker.log'}.",
        ) from failure
    finally:
        store.close()
    if known["answer"] is None:
        raise failure or NoAnswer(f"The flow run {found.group()} left no answer.")
    answer: dict[str, Any] = known["answer"]
    return answer


def _folders(state: Path | None) -> Folders:
    return Folders(state.absolute()) if state is not None else default_folders()


def _tell(what: str) -> None:
    err.print(Text.assemble((time.strftime("%H:%M:%S"), "dim"), f" {what} …"), highlight=False)


def _say_where(stack: RunningStack) -> None:
    err.print(f"UI: {stack.ui_url}   API: {stack.api_url}", highlight=False, soft_wrap=True)
    err.print(
        f"PREFECT_API_URL={stack.api_url} HEXPREFECT_STORE={stack.store_url}",
        highlight=False,
        soft_wrap=True,
    )
    err.print("Ctrl-C stops everything.")
