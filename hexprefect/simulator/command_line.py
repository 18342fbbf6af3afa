"""`hexprefect simulate`, `tune` and `reproduce`: results on standard output, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hexprefect.errors import HexprefectError
from hexprefect.simulator.arrivals import parse_arrivals
from hexprefect.simulator.cluster import parse_cluster
from hexprefect.simulator.command_options import (
    ArrivalText,
    ClusterText,
    Cores,
    Json,
    KvTokens,
    Model,
    NoPrefixCache,
    Number,
    ObjectiveText,
    PrefillMode,
    ProfileFile,
    Rates,
    Setting,
    SloScale,
    Slots,
    Traces,
    alpha_of,
    cluster_of,
    objective_of,
    rates_of,
    tuned_for,
    workload_of,
)
from hexprefect.simulator.experiment import (
    Experiment,
    Measured,
    in_order_of_arrival,
    measure_all,
)
from hexprefect.simulator.facts import MODELS
from hexprefect.simulator.policies import POLICIES, named_policy
from hexprefect.simulator.reproduction import (
    BASELINES,
    SEEDS,
    Evaluation,
    prepare_report,
    reproduce_command,
    write_report,
)
from hexprefect.simulator.tuner import Tuning
from hexprefect.simulator.tuner import tune as tune_window
from hexprefect.simulator.workflow_effect import Effect, workflow_effect

app = typer.Typer(
    no_args_is_help=True, help="Simulate scheduling policies, tune α, reproduce the evaluation."
)

_err = Console(stderr=True, markup=False, emoji=False)


@app.command()
def simulate(
    traces: Traces,
    cluster: ClusterText = "heterogeneous-1",
    rate: Rates = None,
    policy: Annotated[
        str, typer.Option(help=f"Names with commas, or all. There are: {', '.join(POLICIES)}.")
    ] = "rr-fcfs,hexgen,hexprefect",
    alpha: Annotated[
        str | None,
        typer.Option(
            help="α of every policy that has one: a number, or tuned (hexprefect: with its order, "
            "depth and overload policy). Default: each policy's own."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 1,
    slo_scale: SloScale = 3.0,
    arrivals: ArrivalText = "poisson",
    no_prefix_cache: NoPrefixCache = False,
    prefill: PrefillMode = "chunked",
    slots: Slots = None,
    kv_tokens: KvTokens = None,
    model: Model = None,
    profile_file: ProfileFile = None,
    queries: Number = None,
    objective: ObjectiveText = "p95",
    check_laws: Annotated[
        bool, typer.Option("--check-laws", help="Verify the design's laws at every event.")
    ] = False,
    cores: Cores = 1,
    as_json: Json = False,
) -> None:
    """Run traces through policies and print one record per combination.

    Example: `hexprefect simulate bird --cluster a100:2,a6000:1,l40s:1 --rate 0.5x,1x,2x
    --policy rr-fcfs,hexgen,hexprefect --seeds 3`
    """
    with _errors(as_json):
        setting = Setting(
            cluster=cluster_of(
                cluster,
                model=model,
                profile_file=profile_file,
                prefill=prefill,
                slots=slots,
                no_prefix_cache=no_prefix_cache,
                kv_tokens=kv_tokens,
            ),
            arrivals=parse_arrivals(arrivals),
            slo_scale=slo_scale,
            number=queries,
        )
        names = list(POLICIES) if policy == "all" else policy.split(",")
        number, tuned = alpha_of(alpha)
        aim = objective_of(objective)
        experiments: list[Experiment] = []
        with _progress("simulating") as bar:
            for trace in traces:
                workload = workload_of(trace)
                for each_rate in rates_of(rate, workload, setting):
                    for name in names:
                        chosen = named_policy(name.strip())
                        if number is not None and chosen.tunes_alpha:
                            chosen = replace(chosen, alpha=number)
                        first = setting.experiment(trace, workload, each_rate, chosen)
                        if tuned and chosen.tunes_alpha:
                            bar.say(f"tuning {name} at {each_rate:.3f}/s")
                            tuning = tuned_for(first, aim, cores)
                            chosen = tuning.best_tuned.policy
                            _say_tuned(f"{name} at {each_rate:.3f}/s", tuning)
                        experiments.extend(
                            replace(first, policy=chosen, seed=seed, check_laws=check_laws)
                            for seed in range(seeds)
                        )
            bar.begin(len(experiments))
            results = measure_all(experiments, cores=cores, progress=lambda _: bar.advance())
        _print_records([each.as_record() for each in results], as_json=as_json)


@app.command()
def tune(
    traces: Traces,
    cluster: ClusterText = "heterogeneous-1",
    rate: Rates = None,
    policy: Annotated[str, typer.Option(help="The policy to tune.")] = "hexprefect",
    objective: ObjectiveText = "p95",
    jointly: Annotated[
        bool,
        typer.Option("--jointly", help="Search order, depth and overload policy as well as α."),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each point.")] = 3,
    slo_scale: SloScale = 3.0,
    arrivals: ArrivalText = "poisson",
    no_prefix_cache: NoPrefixCache = False,
    prefill: PrefillMode = "chunked",
    slots: Slots = None,
    kv_tokens: KvTokens = None,
    model: Model = None,
    profile_file: ProfileFile = None,
    queries: Annotated[
        int, typer.Option(min=10, help="Queries of the window; of a recording the newest.")
    ] = 100,
    cores: Cores = 1,
    as_json: Json = False,
) -> None:
    """Replay a window over a grid of α, then a finer one, and print the grid and the choice.

    The choice is never worse than round-robin on the window, nor than the policy as it is; where
    round-robin is the choice, the best α is printed besides.
    """
    with _errors(as_json):
        setting = Setting(
            cluster=cluster_of(
                cluster,
                model=model,
                profile_file=profile_file,
                prefill=prefill,
                slots=slots,
                no_prefix_cache=no_prefix_cache,
                kv_tokens=kv_tokens,
            ),
            arrivals=parse_arrivals(arrivals),
            slo_scale=slo_scale,
            number=queries,
        )
        aim = objective_of(objective)
        records: list[dict[str, Any]] = []
        tunings: list[Tuning] = []
        with _progress("tuning") as bar:
            for trace in traces:
                workload = workload_of(trace)
                if setting.arrivals.kind == "recorded":
                    # Of a recording its end: what is tuned for comes after it.
                    workload = in_order_of_arrival(workload)[0][-queries:]
                for each_rate in rates_of(rate, workload, setting):
                    window = setting.experiment(trace, workload, each_rate, named_policy(policy))
                    bar.begin(None)
                    tuning = tune_window(
                        window,
                        objective=aim,
                        seeds=range(seeds),
                        jointly=jointly,
                        cores=cores,
                        progress=lambda _: bar.advance(),
                    )
                    tunings.append(tuning)
                    records.append({"trace": trace, "rate": each_rate, **tuning.as_record()})
        if as_json:
            _print_json(records)
            return
        for record, tuning in zip(records, tunings, strict=True):
            _print_table(
                [point.as_record() for point in tuning.points],
                title=f"{record['trace']} at {record['rate']:.4g} queries/s, by {aim}",
            )
            _print_table([tuning.best.as_record()], title="the choice")
            if tuning.round_robin_wins:
                _print_table([tuning.best_tuned.as_record()], title="the best α")


@app.command()
def reproduce(
    out: Annotated[Path, typer.Option("--out", help="Folder for the report; made if missing.")],
    traces: Annotated[
        list[str] | None,
        typer.Option("--trace", help="Traces; default: the generated bird and spider."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = SEEDS,
    queries: Number = None,
    models: Annotated[str, typer.Option("--models", help="Models, with commas.")] = ",".join(
        MODELS
    ),
    policies: Annotated[str, typer.Option("--policy", help="Policies, with commas.")] = ",".join(
        BASELINES
    ),
    workflow: Annotated[
        bool, typer.Option(help="Also measure our workflow against the reference's.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, 100 queries, two rates: a look, no result.")
    ] = False,
    cores: Cores = 1,
    as_json: Json = False,
) -> None:
    """Run the whole evaluation and write a report: tables, figures, claims beside measurements."""
    with _errors(as_json):
        workloads = {name: workload_of(name) for name in traces or ["bird", "spider"]}
        evaluation = Evaluation(
            workloads=workloads,
            models=tuple(models.split(",")),
            policies=tuple(named_policy(name.strip()).name for name in policies.split(",")),
            seeds=1 if quick else seeds,
            number=100 if quick else queries,
            loads=(1.0, 2.0) if quick else (0.5, 0.75, 1.0, 1.5, 2.0),
        )
        prepare_report(out)
        with _progress("reproducing") as bar:
            bar.begin(evaluation.size)
            results = evaluation.run(cores=cores, progress=lambda _: bar.advance())
            effects: list[Effect] = []
            if workflow:
                bar.say("the workflow's effect")
                effects = workflow_effect(
                    parse_cluster("heterogeneous-1"),
                    named_policy("hexprefect"),
                    number=evaluation.number or 300,
                    seeds=evaluation.seeds,
                )
        command = reproduce_command(
            traces=traces or [],
            seeds=seeds,
            queries=queries,
            models=models,
            policies=policies,
            workflow=workflow,
            quick=quick,
        )
        report = write_report(evaluation, results, out, command=command, effects=effects)
        if as_json:
            _print_json({"report": str(report), "records": [each.as_record() for each in results]})
        else:
            typer.echo(str(report))


def _say_tuned(what: str, tuning: Tuning) -> None:
    """What was chosen, which a record does not show in whole."""
    point = tuning.best_tuned.as_record()
    settings = ("alpha", "order", "slowdown", "late_penalty", "stretch")
    chosen = ", ".join(f"{name} {_cell(point[name])}" for name in settings)
    _err.print(f"{what}, tuned: {chosen}.", highlight=False)
    if tuning.round_robin_wins:
        _err.print(
            f"{what}: round-robin would have been better where it was tuned: {tuning.comparison}.",
            style="yellow",
            highlight=False,
        )


# -- printing --------------------------------------------------------------------------------------


class _Bar:
    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None)

    def begin(self, total: int | None) -> None:
        self._progress.reset(self._task, total=total)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)


@contextmanager
def _progress(what: str) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=_err, transient=True) as progress:
        yield _Bar(progress, what)


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """This project's errors become a message and exit code 2; a traceback is for bugs."""
    try:
        yield
    except HexprefectError as error:
        if as_json:
            _print_json({"error": str(error)})
        else:
            _err.print(f"Error: {error}", style="red", highlight=False)
        raise typer.Exit(2) from error


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _print_records(records: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        _print_json(list(records))
    else:
        _print_table(records)


def _print_table(records: Sequence[dict[str, Any]], title: str | None = None) -> None:
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width: wide rows are not folded.
        console = Console(width=400, markup=False, emoji=False)
    table = Table(title=title, box=None)
    for name in records[0]:
        table.add_column(name, overflow="fold")
    for record in records:
        table.add_row(*(_cell(value) for value in record.values()))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


__all__ = ["Measured", "app", "reproduce", "simulate", "tune"]
