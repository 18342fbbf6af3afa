"""Experiments: one policy on one workload at one rate, and many of them over the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any

from hexprefect.scheduling import Profile
from hexprefect.simulator.arrivals import Arrivals, BadArrivals, moments
from hexprefect.simulator.cluster import Cluster
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.outcome import Outcome, Summary
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.simulation import Simulation
from hexprefect.simulator.tables import Tables
from hexprefect.simulator.workload import Query

LEAST_QUERIES = 300
"""Queries of a run where no number is given: a shorter trace is gone through again, because with 29
or 90 queries most of the time the cluster is filling or draining, and overload never builds up."""

SLO_SCALES = tuple(0.5 * step for step in range(2, 41))
"""Scales of the attainment curves: 1, 1.5, … 20."""


@lru_cache(maxsize=1)
def _tables_for(profiles: tuple[Profile, ...]) -> Tables:
    """The tables of the cluster simulated last: experiments come in rows that differ in policy,
    rate and seed, and have the queries in common."""
    return Tables(profiles)


def in_order_of_arrival(queries: Sequence[Query]) -> tuple[tuple[Query, ...], tuple[float, ...]]:
    """The queries of a recording in order of their moments, those of one moment in the order given;
    and the moments.

    Raises:
        BadArrivals: when a query has none, saying how many.
    """
    timed = [(query.arrived_at, query) for query in queries if query.arrived_at is not None]
    if len(timed) < len(queries):
        raise BadArrivals(
            f"{len(queries) - len(timed)} of {len(queries)} queries have no recorded arrival.",
            remedy="Give each its `arrived_at`, or use another arrival process.",
        )
    timed.sort(key=itemgetter(0))
    return tuple(query for _, query in timed), tuple(moment for moment, _ in timed)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that one simulation depends on; the same experiment gives the same outcome."""

    trace: str
    """A name for the record."""
    queries: tuple[Query, ...]
    cluster: Cluster
    policy: Policy
    rate: float
    arrivals: Arrivals = field(default_factory=Arrivals)
    seed: int = 0
    slo_scale: float = 3.0
    number: int | None = None
    """Queries that arrive; `None`: once through the trace, at least `LEAST_QUERIES`."""
    check_laws: bool = False

    def arriving(self) -> Iterator[tuple[float, Query]]:
        """`(moment, query)`: the trace in its order, again and again, at drawn moments; a recording
        once, each query at its own moment.

        Raises:
            BadArrivals: for a recording in which a query has no moment.
        """
        if self.arrivals.kind == "recorded":
            queries, recorded = in_order_of_arrival(self.queries)
            number = min(self.number or len(queries), len(queries))
        else:
            queries, recorded = self.queries, ()
            number = self.number or max(len(queries), LEAST_QUERIES)
        at = moments(self.arrivals, self.rate, self.seed, recorded)
        for place, moment in enumerate(islice(at, number)):
            yield moment, queries[place % len(queries)]

    def run(self) -> Outcome:
        """Simulate."""
        profiles = self.cluster.profiles
        return Simulation(
            self.cluster,
            self.policy,
            slo_scale=self.slo_scale,
            seed=self.seed,
            knowledge=Knowledge(profiles, tables=_tables_for(profiles)),
            check_laws=self.check_laws,
        ).run(self.arriving())

    def measure(self) -> Measured:
        """Simulate, and time it."""
        began = time.perf_counter()
        outcome = self.run()
        return Measured(
            self,
            outcome.summary(),
            time.perf_counter() - began,
            outcome.attainment_curve(SLO_SCALES),
        )


@dataclass(frozen=True)
class Measured:
    """An experiment and what came out of it."""

    experiment: Experiment
    summary: Summary
    wall_s: float
    attainment: tuple[float, ...] = ()
    """Attainment at each of `SLO_SCALES`."""

    def as_record(self) -> dict[str, Any]:
        """The record that `hexprefect simulate` prints, plain values in the documented order."""
        experiment = self.experiment
        summary = asdict(self.summary)
        return {
            "trace": experiment.trace,
            "cluster": experiment.cluster.name,
            "rate": experiment.rate,
            "policy": experiment.policy.name,
            "alpha": experiment.policy.alpha if experiment.policy.tunes_alpha else None,
            "seed": experiment.seed,
            "requests": summary.pop("requests"),
            **{
                name: summary.pop(name)
                for name in (
                    "mean_s",
                    "p50_s",
                    "p95_s",
                    "p99_s",
                    "throughput_qps",
                    "slo_attainment",
                    "slo_scale_at_95",
                    "slo_scale_at_99",
                )
            },
            "wall_s": self.wall_s,
            **summary,
        }


def measure_all(
    experiments: Iterable[Experiment],
    *,
    cores: int = 1,
    progress: Callable[[Measured], object] | None = None,
) -> list[Measured]:
    """Run experiments, over several processes where `cores` says so; results in order given.

    Args:
        experiments: what to run.
        cores: processes at once; 1 runs here.
        progress: called after each, in order.
    """
    results: list[Measured] = []
    wanted: Sequence[Experiment] = list(experiments)
    if cores <= 1 or len(wanted) <= 1:
        for experiment in wanted:
            results.append(experiment.measure())
            if progress is not None:
                progress(results[-1])
        return results
    with ProcessPoolExecutor(max_workers=cores) as pool:
        chunk = max(1, min(8, len(wanted) // (4 * cores)))
        for measured in pool.map(Experiment.measure, wanted, chunksize=chunk):
            results.append(measured)
            if progress is not None:
                progress(measured)
    return results


def with_policy(experiment: Experiment, policy: Policy) -> Experiment:
    """The same experiment under another policy."""
    return replace(experiment, policy=policy)
