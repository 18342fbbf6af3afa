"""`hexprefect eval`: how good the answers are, against questions whose answers are known."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hexprefect.commands.output import Json, StoreUrl, err, errors_for_people, out, print_json, run
from hexprefect.errors import CallerMistake
from hexprefect.evaluation.answer_log import AnswerLog, read_run
from hexprefect.evaluation.comparing import compare
from hexprefect.evaluation.completions_cache import CachedCompletions
from hexprefect.evaluation.configuration import agent_fingerprint, configuration, digest_of
from hexprefect.evaluation.execution import ExecutionLimits, Executor
from hexprefect.evaluation.instances_client import LeastBusy, endpoints_at
from hexprefect.evaluation.predictions import read_predictions
from hexprefect.evaluation.questions import (
    GoldQuestion,
    choose_questions,
    database_url,
    read_questions,
)
from hexprefect.evaluation.records import MEASURES, Measure, QuestionRecord
from hexprefect.evaluation.report import comparison_text, markdown_report
from hexprefect.evaluation.running import evaluate
from hexprefect.evaluation.sources import Agent, AnswerSource, Predictions
from hexprefect.evaluation.summary import summarise
from hexprefect.text2sql.agent import AgentOptions

_CONTEXT_TOKENS = 8192
"""Of a local server, a request: the schema's budget, the question and the answer fit."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where answers shall come from, as the command line says."""

    predictions: Path | None
    instances: tuple[str, ...]
    model_name: str | None
    model: str | None
    threads: int
    stack: bool
    store: str | None
    tenant: str
    slo_s: float | None
    options: AgentOptions
    cache: Path | None
    call_timeout_s: float
    at_once: int


def evaluate_command(
    questions: Annotated[Path, typer.Argument(help="JSON lines, or BIRD's or Spider's JSON.")],
    databases: Annotated[
        str,
        typer.Option(
            "--databases",
            "-d",
            help="Folder of the databases, or a URL with {db_id} in it.",
        ),
    ],
    predictions: Annotated[
        Path | None, typer.Option(help="Judge these statements: JSON lines, BIRD's JSON, or .sql.")
    ] = None,
    instance: Annotated[
        list[str] | None,
        typer.Option(help="Run the agent here, on this OpenAI-compatible server. Repeatable."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Run the agent here, on a local model: 0.5B or 1.5B.")
    ] = None,
    stack: Annotated[
        bool, typer.Option("--stack", help="Ask the deployment text2sql/ask of the Prefect server.")
    ] = False,
    ids: Annotated[
        str | None, typer.Option(help="Only ids like this, for example spider_*.")
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Draw this many of them.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of answers and report; a second run goes on there."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of an earlier run to compare with.")
    ] = None,
    measure: Annotated[
        str, typer.Option(help=f"Of stages, causes and groups: {', '.join(MEASURES)}.")
    ] = "spider_execution",
    option: Annotated[
        list[str] | None,
        typer.Option(help="Of the agent, for example candidates=4. Repeatable."),
    ] = None,
    completions_cache: Annotated[
        Path | None, typer.Option(help="Folder in which the model's answers are kept.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, max=256, help="Questions at the same time.")] = 1,
    model_name: Annotated[
        str | None, typer.Option(help="The model of the instances, where they offer several.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the local model; by default all processors.")
    ] = None,
    call_timeout: Annotated[float, typer.Option(min=1, help="Seconds of one model call.")] = 600.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds of a predicted statement.")] = 30,
    gold_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds of a gold one.")] = 120,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a result to compare.")] = 200_000,
    slo: Annotated[
        float | None, typer.Option(help="With --stack: seconds to the deadline.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="With --stack: whose questions.")] = "default",
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Judge answers by the official measures of BIRD and Spider, stage by stage.

    Answers come from exactly one of --predictions, --instance, --model and --stack.
    """
    with errors_for_people(as_json=as_json):
        asked = _Asked(
            predictions=predictions,
            instances=tuple(instance or ()),
            model_name=model_name,
            model=model,
            threads=threads or len(os.sched_getaffinity(0)),
            stack=stack,
            store=store,
            tenant=tenant,
            slo_s=slo,
            options=_agent_options(option or []),
            cache=completions_cache,
            call_timeout_s=call_timeout,
            at_once=at_once,
        )
        _check_one_source(asked)
        counted_by = _measure(measure)
        every = read_questions(questions)
        chosen = choose_questions(every, ids=ids, sample=sample, seed=seed, limit=limit)
        limits = ExecutionLimits(timeout_s=timeout, gold_timeout_s=gold_timeout, max_rows=max_rows)
        known = read_run(against)[0] if against is not None else None
        records = run(_evaluate(questions, every, chosen, databases, asked, limits, out_folder))
        summary = summarise(records, counted_by)
        comparison = None
        if known is not None:
            comparison = compare({item.id: item for item in records}, known)
            summary["against"] = {"folder": str(against), **comparison}
        report = partial(
            markdown_report,
            summary,
            records,
            title=f"Evaluation of {questions.name}",
            comparison=comparison,
            against=str(against),
        )
    if out_folder is not None:
        (out_folder / "report.md").write_text(report(), encoding="utf-8")
        err.print(f"Report: {out_folder / 'report.md'}", highlight=False)
    if as_json:
        print_json(summary)
    else:
        out.print(Markdown(report(wrong_shown=0)))


def compare_command(
    ours: Annotated[Path, typer.Argument(help="Folder of a run.")],
    theirs: Annotated[Path, typer.Argument(help="Folder of the run to compare it with.")],
    as_json: Json = False,
) -> None:
    """Compare two runs of `hexprefect eval` question by question: wins, losses, McNemar's p."""
    with errors_for_people(as_json=as_json):
        comparison = compare(read_run(ours)[0], read_run(theirs)[0])
    if as_json:
        print_json(comparison)
    else:
        out.print(Markdown(f"# {ours}\n\n{comparison_text(comparison, str(theirs))}"))


async def _evaluate(
    file: Path,
    every: Sequence[GoldQuestion],
    chosen: Sequence[GoldQuestion],
    databases: str,
    asked: _Asked,
    limits: ExecutionLimits,
    folder: Path | None,
) -> tuple[QuestionRecord, ...]:
    urls = {question.id: database_url(question, databases) for question in chosen}
    async with _source(asked, every) as (source, described), Executor(limits) as executor:
        log = AnswerLog(folder, configuration(questions=file, source=described, limits=limits))
        with _progress() as tell:
            return await evaluate(
                chosen,
                urls=urls,
                source=source,
                executor=executor,
                log=log,
                at_once=asked.at_once,
                on_progress=tell,
            )


@asynccontextmanager
async def _source(
    asked: _Asked, questions: Sequence[GoldQuestion]
) -> AsyncIterator[tuple[AnswerSource, dict[str, Any]]]:
    """What answers, and all of it that an answer depends on."""
    if asked.predictions is not None:
        statements = read_predictions(asked.predictions, questions)
        yield Predictions(statements), {"predictions": digest_of(asked.predictions)}
    elif asked.stack:
        from hexprefect.commands.evaluate_stack import Stack

        stack = Stack(store_url=asked.store, tenant=asked.tenant, slo_s=asked.slo_s)
        yield stack, {"stack": {"tenant": asked.tenant, "slo_s": asked.slo_s}}
    else:
        async with _agent(asked) as (agent, model):
            described = {
                "model": model,
                "options": asdict(asked.options),
                "agent": agent_fingerprint(),
            }
            yield agent, described


@asynccontextmanager
async def _agent(asked: _Asked) -> AsyncIterator[tuple[Agent, str]]:
    from hexprefect.instances.client import InstanceClient

    async with InstanceClient() as client, _endpoints(client, asked) as endpoints:
        name = endpoints[0].model
        complete: Any = LeastBusy(client, endpoints, timeout_s=asked.call_timeout_s)
        if asked.cache is not None:
            complete = CachedCompletions(complete, asked.cache, name)
        async with Agent(complete, asked.options) as agent:
            yield agent, name


@asynccontextmanager
async def _endpoints(client: Any, asked: _Asked) -> AsyncIterator[tuple[Any, ...]]:
    if asked.instances:
        yield await endpoints_at(client, asked.instances, model=asked.model_name)
        return
    from hexprefect.instances.local_model import ensure_model_async, find_model
    from hexprefect.instances.local_server import LocalServer

    assert asked.model is not None, "exactly one source was asked for"
    model = find_model(asked.model)
    path = await ensure_model_async(model)
    server = LocalServer(
        "local",
        path,
        threads=asked.threads,
        slots=asked.at_once,
        context_tokens=_CONTEXT_TOKENS,
        model_name=model.model_name,
    )
    async with server as endpoint:
        yield (endpoint,)


def _check_one_source(asked: _Asked) -> None:
    given = {
        "--predictions": asked.predictions is not None,
        "--instance": bool(asked.instances),
        "--model": asked.model is not None,
        "--stack": asked.stack,
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) != 1:
        raise CallerMistake(
            f"Answers come from {' and '.join(named) or 'nowhere'}.",
            remedy=f"Give exactly one of {', '.join(given)}.",
        )


def _agent_options(given: Sequence[str]) -> AgentOptions:
    """Options written `name=value`.

    Raises:
        CallerMistake: there is no such option, or its value is out of range.
    """
    known = [item.name for item in fields(AgentOptions)]
    values: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in known:
            raise CallerMistake(
                f"The agent has no option {text!r}.",
                remedy=f"Write name=value with one of: {', '.join(known)}.",
            )
        values[name] = value
    try:
        return TypeAdapter(AgentOptions).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise CallerMistake(
            f"The option {'.'.join(map(str, first['loc']))} of the agent: {first['msg']}."
        ) from error


def _measure(name: str) -> Measure:
    for measure in MEASURES:
        if measure == name:
            return measure
    raise CallerMistake(
        f"There is no measure {name!r}.", remedy=f"Choose one of {', '.join(MEASURES)}."
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int, QuestionRecord | None], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    right = judged = 0
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as shown:
        task = shown.add_task("Evaluating")

        def tell(done: int, of: int, newest: QuestionRecord | None) -> None:
            nonlocal right, judged
            if newest is not None:
                judged += newest.verdict.is_judged
                right += newest.verdict.spider_execution
                share = f" {right}/{judged} right" if judged else ""
                shown.update(task, description=f"Evaluating{share}")
            shown.update(task, completed=done, total=of)

        yield tell
