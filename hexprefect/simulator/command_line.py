"""`hexprefect simulate`, `tune` and `reproduce`: results on standard output, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hexprefect.errors import HexprefectError
from hexprefect.simulator.arrivals import Arrivals, parse_arrivals
from hexprefect.simulator.cluster import Cluster, capacity, parse_cluster, read_profiles
from hexprefect.simulator.engine_values import EngineOptions, Prefill
from hexprefect.simulator.experiment import Experiment, Measured, measure_all
from hexprefect.simulator.facts import profiles
from hexprefect.simulator.generator import named_workload
from hexprefect.simulator.policies import POLICIES, Policy, named_policy
from hexprefect.simulator.reproduction import BASELINES, Evaluation, write_report
from hexprefect.simulator.tuner import OBJECTIVES, CannotTune, Objective, Tuning
from hexprefect.simulator.tuner import tune as tune_window
from hexprefect.simulator.workload import Query, read_workload

app = typer.Typer(
    no_args_is_help=True, help="Simulate scheduling policies, tune α, reproduce the evaluation."
)

_TUNING_SEED = 1000
"""Windows for tuning are drawn with other seeds than the runs that are reported."""

_err = Console(stderr=True)

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE…",
        help="Workloads: a file (the reference's JSON list, or JSONL, one query a line), or the "
        "name of a generated one: bird, spider, bird-ours, spider-ours.",
    ),
]
ClusterText = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="HARDWARE:COUNT,… such as a100:2,a6000:1,l40s:1, or heterogeneous-1, heterogeneous-2, "
        "homogeneous.",
    ),
]
Rates = Annotated[
    str,
    typer.Option(
        "--rate",
        help="Queries a second, several with commas. With an x, multiples of the cluster's "
        "estimated capacity for the trace: 0.5x,1x,2x.",
    ),
]
ArrivalText = Annotated[
    str,
    typer.Option(
        "--arrivals", help="poisson, gamma:CV, deterministic, phases:RATExSECONDS,… or recorded."
    ),
]
SloScale = Annotated[
    float,
    typer.Option(min=0.1, help="SLO of a query, in multiples of its duration alone."),
]
NoPrefixCache = Annotated[
    bool, typer.Option("--no-prefix-cache", help="Switch the engines' prefix caching off.")
]
PrefillMode = Annotated[
    str, typer.Option(help="How engines treat prompts: chunked (vLLM's default) or first.")
]
Model = Annotated[str, typer.Option(help="Profiles: llama-3.1-70b or qwen3-30b-a3b.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profiles", help="JSON file with profiles of your own.")
]
Number = Annotated[
    int | None,
    typer.Option(
        "--queries", min=1, help="Queries that arrive. Default: the whole trace, at least 300."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
Cores = Annotated[int, typer.Option(min=1, help="Processes at once.")]
ObjectiveText = Annotated[str, typer.Option("--objective", help="p95, attainment or mean.")]


@app.command()
def simulate(
    traces: Traces,
    cluster: ClusterText = "heterogeneous-1",
    rate: Rates = "1x",
    policy: Annotated[
        str, typer.Option(help=f"Names with commas, or all. There are: {', '.join(POLICIES)}.")
    ] = "rr-fcfs,hexgen,hexprefect",
    alpha: Annotated[
        str | None,
        typer.Option(
            help="α of every policy that has one: a number, or tuned (hexprefect: with order and "
            "depth). Default: each policy's own."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 1,
    slo_scale: SloScale = 3.0,
    arrivals: ArrivalText = "poisson",
    no_prefix_cache: NoPrefixCache = False,
    prefill: PrefillMode = "chunked",
    model: Model = "llama-3.1-70b",
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
        setting = _Setting(
            cluster=_cluster(cluster, no_prefix_cache, prefill, model, profile_file),
            arrivals=parse_arrivals(arrivals),
            slo_scale=slo_scale,
            number=queries,
        )
        names = list(POLICIES) if policy == "all" else policy.split(",")
        number, tuned = _alpha(alpha)
        aim = _objective(objective)
        experiments: list[Experiment] = []
        with _progress("simulating") as bar:
            for trace in traces:
                workload = _workload(trace)
                for each_rate in _rates(rate, workload, setting.cluster):
                    for name in names:
                        chosen = named_policy(name.strip())
                        if number is not None and chosen.tunes_alpha:
                            chosen = replace(chosen, alpha=number)
                        first = setting.experiment(trace, workload, each_rate, chosen)
                        if tuned and chosen.tunes_alpha:
                            bar.say(f"tuning {name} at {each_rate:.3f}/s")
                            chosen = _tuned(first, aim, cores)
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
    rate: Rates = "1x",
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
    model: Model = "llama-3.1-70b",
    profile_file: ProfileFile = None,
    queries: Annotated[int, typer.Option(min=10, help="Queries of the window.")] = 100,
    cores: Cores = 1,
    as_json: Json = False,
) -> None:
    """Replay a window over a grid of α, then a finer one, and print the grid and the choice.

    The choice is never worse than round-robin on the window.
    """
    with _errors(as_json):
        setting = _Setting(
            cluster=_cluster(cluster, no_prefix_cache, prefill, model, profile_file),
            arrivals=parse_arrivals(arrivals),
            slo_scale=slo_scale,
            number=queries,
        )
        aim = _objective(objective)
        records: list[dict[str, Any]] = []
        tunings: list[Tuning] = []
        with _progress("tuning") as bar:
            for trace in traces:
                workload = _workload(trace)
                for each_rate in _rates(rate, workload, setting.cluster):
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


@app.command()
def reproduce(
    out: Annotated[Path, typer.Option("--out", help="Folder for the report; made if missing.")],
    traces: Annotated[
        list[str] | None,
        typer.Option("--trace", help="Traces; default: the generated bird and spider."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 3,
    queries: Number = None,
    models: Annotated[
        str, typer.Option("--models", help="Models, with commas.")
    ] = "llama-3.1-70b,qwen3-30b-a3b",
    policies: Annotated[str, typer.Option("--policy", help="Policies, with commas.")] = ",".join(
        BASELINES
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, 100 queries, two rates: a look, no result.")
    ] = False,
    cores: Cores = 1,
    as_json: Json = False,
) -> None:
    """Run the whole evaluation and write a report: tables, figures, claims beside measurements."""
    with _errors(as_json):
        workloads = {name: _workload(name) for name in traces or ["bird", "spider"]}
        evaluation = Evaluation(
            workloads=workloads,
            models=tuple(models.split(",")),
            policies=tuple(named_policy(name.strip()).name for name in policies.split(",")),
            seeds=1 if quick else seeds,
            number=100 if quick else queries,
            loads=(1.0, 2.0) if quick else (0.5, 0.75, 1.0, 1.5, 2.0),
        )
        with _progress("reproducing") as bar:
            bar.begin(evaluation.size)
            results = evaluation.run(cores=cores, progress=lambda _: bar.advance())
        command = "hexprefect reproduce " + " ".join(
            ["--out DIR", *(f"--trace {Path(name).name}" for name in workloads)]
        )
        report = write_report(evaluation, results, out, command=command)
        if as_json:
            _print_json({"report": str(report), "records": [each.as_record() for each in results]})
        else:
            typer.echo(str(report))


# -- reading options -------------------------------------------------------------------------------


class _Setting:
    """What all experiments of one command have in common."""

    def __init__(
        self, *, cluster: Cluster, arrivals: Arrivals, slo_scale: float, number: int | None
    ) -> None:
        self.cluster = cluster
        self.arrivals = arrivals
        self.slo_scale = slo_scale
        self.number = number

    def experiment(
        self, trace: str, queries: tuple[Query, ...], rate: float, policy: Policy
    ) -> Experiment:
        return Experiment(
            trace=Path(trace).stem,
            queries=queries,
            cluster=self.cluster,
            policy=policy,
            rate=rate,
            arrivals=self.arrivals,
            slo_scale=self.slo_scale,
            number=self.number,
        )


class BadOption(HexprefectError):
    """An option of the command line that cannot be understood."""


def _workload(trace: str) -> tuple[Query, ...]:
    if trace.partition("-")[0] in ("bird", "spider") and not Path(trace).exists():
        return named_workload(trace)
    return read_workload(Path(trace))


def _cluster(
    text: str, no_prefix_cache: bool, prefill: str, model: str, profile_file: Path | None
) -> Cluster:
    if prefill not in ("chunked", "first"):
        raise BadOption(f"--prefill {prefill!r} does not exist.", remedy="Use chunked or first.")
    known = dict(profiles(model))
    if profile_file is not None:
        known |= read_profiles(profile_file)
    options = EngineOptions(prefill=cast(Prefill, prefill), prefix_cache=not no_prefix_cache)
    return parse_cluster(text, options=options, known=known)


def _rates(text: str, workload: tuple[Query, ...], cluster: Cluster) -> list[float]:
    rates = []
    for part in text.split(","):
        number, relative = part.strip(), part.strip().endswith("x")
        try:
            rate = float(number.removesuffix("x"))
        except ValueError:
            rate = 0.0
        if not rate > 0:
            raise BadOption(
                f"--rate {part!r} is no positive rate.", remedy="Write 0.2,0.4 or 0.5x,1x."
            )
        rates.append(rate * capacity(workload, cluster) if relative else rate)
    return rates


def _alpha(text: str | None) -> tuple[float | None, bool]:
    if text is None or text == "tuned":
        return None, text == "tuned"
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise BadOption(f"--alpha {text!r} is not in [0, 1].", remedy="Give a number, or tuned.")
    return number, False


def _objective(text: str) -> Objective:
    if text not in OBJECTIVES:
        raise BadOption(
            f"--objective {text!r} does not exist.", remedy=f"Use {', '.join(OBJECTIVES)}."
        )
    return text


def _tuned(window: Experiment, objective: Objective, cores: int) -> Policy:
    """The policy tuned on a window of its own; α alone, except for ours."""
    try:
        tuning = tune_window(
            replace(window, number=min(window.number or 200, 200)),
            objective=objective,
            seeds=(_TUNING_SEED, _TUNING_SEED + 1),
            alphas=tuple(round(0.1 * step, 1) for step in range(11)),
            jointly=window.policy.name == "hexprefect" and objective != "p95",
            cores=cores,
        )
    except CannotTune:
        return window.policy
    return tuning.policy if tuning.policy.tunes_alpha else window.policy


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
            _err.print(f"Error: {error}", style="red", highlight=False, markup=False)
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
    console = Console()
    if not console.is_terminal:
        # A pipe has no width: wide rows are not folded.
        console = Console(width=400)
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
