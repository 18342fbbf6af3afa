"""`hexprefect eval`: how good the answers are, against questions whose answers are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hexprefect.commands.evaluate_sources import SourceOptions, agent_options, open_source
from hexprefect.commands.output import Json, StoreUrl, err, errors_for_people, out, print_json, run
from hexprefect.errors import CallerMistake
from hexprefect.evaluation.answer_log import AnswerLog, read_run
from hexprefect.evaluation.comparing import compare
from hexprefect.evaluation.configuration import configuration
from hexprefect.evaluation.database_fingerprints import database_fingerprints
from hexprefect.evaluation.execution import ExecutionLimits, Executor
from hexprefect.evaluation.questions import (
    GoldQuestion,
    choose_questions,
    database_url,
    read_questions,
)
from hexprefect.evaluation.records import MEASURES, Measure, QuestionRecord
from hexprefect.evaluation.report import comparison_text, markdown_report
from hexprefect.evaluation.running import evaluate
from hexprefect.evaluation.summary import summarise


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
    call_timeout: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds of one model call.")
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds of a predicted statement.")
    ] = 30,
    gold_timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds of a gold one.")
    ] = 120,
    max_rows: Annotated[
        int, typer.Option(min=1, max=10**9, help="Rows of a result to compare.")
    ] = 200_000,
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
        source = SourceOptions(
            predictions=predictions,
            instances=tuple(instance or ()),
            model=model,
            stack=stack,
            agent=agent_options(option or []),
            model_name=model_name,
            threads=threads or len(os.sched_getaffinity(0)),
            at_once=at_once,
            cache=completions_cache,
            call_timeout_s=call_timeout,
            store=store,
            tenant=tenant,
            slo_s=slo,
        )
        counted_by = _measure(measure)
        every = read_questions(questions)
        chosen = choose_questions(every, ids=ids, sample=sample, seed=seed, limit=limit)
        urls = {question.id: database_url(question, databases) for question in chosen}
        limits = ExecutionLimits(timeout_s=timeout, gold_timeout_s=gold_timeout, max_rows=max_rows)
        known = read_run(against)[0] if against is not None else None
        records = run(
            _evaluate(questions, every, chosen, urls, source, limits, out_folder, counted_by)
        )
        comparison = None
        if known is not None:
            comparison = compare({item.id: item for item in records}, known)
    summary = summarise(records, counted_by)
    title, other = f"Evaluation of {questions.name}", str(against)
    if out_folder is not None:
        report = markdown_report(
            summary, records, title=title, comparison=comparison, against=other
        )
        (out_folder / "report.md").write_text(report, encoding="utf-8")
        err.print(f"Report: {out_folder / 'report.md'}", highlight=False)
    if as_json:
        print_json({**summary, "against": comparison})
    else:
        shown = markdown_report(
            summary, records, title=title, comparison=comparison, against=other, wrong_shown=0
        )
        out.print(Markdown(shown))


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
    urls: dict[str, str],
    options: SourceOptions,
    limits: ExecutionLimits,
    folder: Path | None,
    measure: Measure,
) -> tuple[QuestionRecord, ...]:
    async with open_source(options, every) as (source, described), Executor(limits) as executor:
        known = configuration(
            questions=file,
            databases=await database_fingerprints(chosen, urls, executor) if folder else {},
            source=described,
            limits=limits,
        )
        log = AnswerLog(folder, known)
        with _progress(measure) as tell:
            return await evaluate(
                chosen,
                urls=urls,
                source=source,
                executor=executor,
                log=log,
                at_once=options.at_once,
                on_progress=tell,
            )


def _measure(name: str) -> Measure:
    for measure in MEASURES:
        if measure == name:
            return measure
    raise CallerMistake(
        f"There is no measure {name!r}.", remedy=f"Choose one of {', '.join(MEASURES)}."
    )


@contextmanager
def _progress(measure: Measure) -> Iterator[Callable[[int, int, QuestionRecord | None], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    right = judged = 0
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as shown:
        task = shown.add_task("Evaluating")

        def tell(done: int, of: int, newest: QuestionRecord | None) -> None:
            nonlocal right, judged
            if newest is not None:
                judged += newest.verdict.is_judged
                right += newest.verdict.right(measure)
                share = f" {right}/{judged} right" if judged else ""
                shown.update(task, description=f"Evaluating{share}")
            shown.update(task, completed=done, total=of)

        yield tell
