"""The whole evaluation, and the report of it: tables, figures, claims beside measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, nan
from pathlib import Path
from statistics import fmean

from hexprefect.errors import HexprefectError
from hexprefect.simulator.cluster import PAPER_CLUSTERS, Cluster, capacity, parse_cluster
from hexprefect.simulator.engine_values import EngineOptions
from hexprefect.simulator.experiment import Experiment, Measured, measure_all
from hexprefect.simulator.facts import MODELS, profiles
from hexprefect.simulator.outcome import Summary
from hexprefect.simulator.policies import POLICIES, Policy
from hexprefect.simulator.workflow_effect import Effect
from hexprefect.simulator.workload import Query

BASELINES = (
    "rr-fcfs",
    "least-loaded",
    "rr-pq",
    "wb-fcfs",
    "hexgen",
    "reference",
    "qlm",
    "llf",
    "edf",
    "las",
    "hexagent",
    "hexprefect",
    "hexprefect-attainment",
)

SWEPT = ("hexgen", "hexprefect")
"""Policies whose α is swept, where they are evaluated: on unequal clusters with prefix caching, at
the highest load."""

SEEDS = 3
"""Runs of each combination where nobody says otherwise."""

ALPHA_SWEEP = tuple(round(0.1 * step, 1) for step in range(11))

Place = tuple[str, str, str, bool]
"""Where something was measured: trace, model, cluster, whether prefixes were cached."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured. `loads` are multiples of the estimated capacity of each place."""

    workloads: Mapping[str, tuple[Query, ...]]
    models: tuple[str, ...] = ("llama-3.1-70b",)
    clusters: tuple[str, ...] = tuple(PAPER_CLUSTERS)
    caching: tuple[bool, ...] = (True, False)
    loads: tuple[float, ...] = (0.5, 0.75, 1.0, 1.5, 2.0)
    policies: tuple[str, ...] = BASELINES
    seeds: int = SEEDS
    number: int | None = None

    def places(self) -> Iterator[tuple[Place, tuple[Query, ...], Cluster]]:
        """Every trace on every cluster of every model, with prefix caching and without."""
        for trace, queries in self.workloads.items():
            for model in self.models:
                for name in self.clusters:
                    for cached in self.caching:
                        cluster = parse_cluster(
                            name,
                            options=EngineOptions(prefix_cache=cached),
                            known=profiles(model),
                        )
                        yield (trace, model, name, cached), queries, cluster

    def experiments(self) -> Iterator[tuple[Place, float, str, Experiment]]:
        """Every run: its place, load, and the policy's name or `name α=…` in the sweep."""
        for place, queries, cluster in self.places():
            rate = capacity(queries, cluster)
            for load in self.loads:
                sweep = load == self.loads[-1] and place[3] and place[2] != "homogeneous"
                for label, policy in self._policies(sweep=sweep):
                    for seed in range(self.seeds):
                        experiment = Experiment(
                            trace=Path(place[0]).stem,
                            queries=queries,
                            cluster=cluster,
                            policy=policy,
                            rate=load * rate,
                            seed=seed,
                            number=self.number,
                        )
                        yield place, load, label, experiment

    def _policies(self, *, sweep: bool) -> Iterator[tuple[str, Policy]]:
        for name in self.policies:
            yield name, POLICIES[name]
        if sweep:
            for name in (name for name in SWEPT if name in self.policies):
                for alpha in ALPHA_SWEEP:
                    yield f"{name} α={alpha}", replace(POLICIES[name], alpha=alpha)

    @property
    def size(self) -> int:
        """How many runs there are."""
        return sum(1 for _ in self.experiments())

    def run(
        self, *, cores: int = 1, progress: Callable[[Measured], object] | None = None
    ) -> list[Measured]:
        """Measure everything, in the order of `experiments`."""
        return measure_all(
            (experiment for _, _, _, experiment in self.experiments()),
            cores=cores,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The mean over the seeds of one policy at one place under one load."""

    place: Place
    load: float
    label: str
    rate: float
    figures: Mapping[str, float]
    attainment: tuple[float, ...]


FIGURES = (
    "mean_s",
    "p95_s",
    "p99_s",
    "throughput_qps",
    "slo_attainment",
    "slo_scale_at_95",
    "slo_scale_at_99",
    "longest_latency_s",
)


def rows(evaluation: Evaluation, results: Sequence[Measured]) -> list[Row]:
    """Means over the seeds, in the order of the experiments."""
    grouped: dict[tuple[Place, float, str], list[Measured]] = {}
    for (place, load, label, _), measured in zip(evaluation.experiments(), results, strict=True):
        grouped.setdefault((place, load, label), []).append(measured)
    return [
        Row(
            place,
            load,
            label,
            several[0].experiment.rate,
            {name: _mean(name, [each.summary for each in several]) for name in FIGURES},
            tuple(fmean(curve) for curve in zip(*(m.attainment for m in several), strict=True)),
        )
        for (place, load, label), several in grouped.items()
    ]


def _mean(name: str, summaries: Sequence[Summary]) -> float:
    return fmean(float(getattr(summary, name)) for summary in summaries)


class Comparison:
    """Ratios between two policies, over places and loads."""

    def __init__(self, table: Sequence[Row]) -> None:
        self._rows = {(row.place, row.load, row.label): row for row in table}

    def ratios(
        self,
        better: str,
        worse: str | tuple[str, ...],
        figure: str,
        *,
        clusters: Sequence[str],
        loads: Callable[[float], bool] = lambda load: True,
    ) -> list[float]:
        """How many times `figure` of `worse` is that of `better`, at each place and load; of
        several, that of the best of them there. A place where one is missing is left out.

        For rates (throughput, attainment) the other way round, so that above 1 is always better:
        infinite where only the worse is 0; where both are, there is nothing to compare.
        """
        names = (worse,) if isinstance(worse, str) else worse
        rate = figure in ("throughput_qps", "slo_attainment")
        found = []
        for (place, load, label), row in self._rows.items():
            others = [self._rows.get((place, load, name)) for name in names]
            theirs = [other.figures[figure] for other in others if other is not None]
            if label != better or place[2] not in clusters or not loads(load):
                continue
            if len(theirs) < len(names):
                continue
            mine, best = row.figures[figure], max(theirs) if rate else min(theirs)
            above, below = (mine, best) if rate else (best, mine)
            if below > 0:
                found.append(above / below)
            elif above > 0:
                found.append(inf)
        return found


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios: 0 or infinite where one of them is, and not a number where both are."""
    if not values:
        return nan
    if 0 in values:
        return nan if inf in values else 0.0
    return exp(fmean(log(value) for value in values))


def reproduce_command(
    *,
    traces: Sequence[str],
    seeds: int,
    queries: int | None,
    models: str,
    policies: str,
    workflow: bool,
    quick: bool,
) -> str:
    """The command that makes a report: what its options differ in from what they are by default,
    traces without their folders."""
    options = ["--out DIR", *(f"--trace {Path(name).name}" for name in traces)]
    if models != ",".join(MODELS):
        options.append(f"--models {models}")
    if policies != ",".join(BASELINES):
        options.append(f"--policy {policies}")
    if queries is not None:
        options.append(f"--queries {queries}")
    if seeds != SEEDS:
        options.append(f"--seeds {seeds}")
    if not workflow:
        options.append("--no-workflow")
    if quick:
        options.append("--quick")
    return " ".join(["hexprefect reproduce", *options])


class CannotReport(HexprefectError):
    """The folder of a report cannot be made."""


def prepare_report(out: Path) -> None:
    """Make the folder, and see that figures can be drawn: before the hours of an evaluation.

    Raises:
        CannotReport: when there can be no such folder.
        NoMatplotlib: when matplotlib is not installed.
    """
    from hexprefect.simulator.figures import drawing

    drawing()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotReport(
            f"cannot make the folder {out}: {error.strerror}.", remedy="Give another with --out."
        ) from error


def write_report(
    evaluation: Evaluation,
    results: Sequence[Measured],
    out: Path,
    *,
    command: str,
    effects: Sequence[Effect] = (),
) -> Path:
    """Write `report.md`, its figures and `records.json` into a folder.

    Returns:
        The path of the report.
    """
    from hexprefect.simulator.figures import draw_figures
    from hexprefect.simulator.report import report_text, write_records

    prepare_report(out)
    table = rows(evaluation, results)
    figures = draw_figures(evaluation, table, out)
    write_records(results, out / "records.json")
    path = out / "report.md"
    text = report_text(evaluation, table, figures, command=command, effects=effects)
    path.write_text(text, encoding="utf-8")
    return path
