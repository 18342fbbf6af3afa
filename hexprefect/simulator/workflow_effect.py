"""The effect of the workflow: our graph against the reference's sequence, under one policy.

The same questions are asked of both. Their SLO is that of the reference: its scale times what the
reference's workflow takes alone, so that a shorter workflow does not get a tighter deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from hexprefect.simulator.cluster import Cluster, capacity
from hexprefect.simulator.experiment import Experiment
from hexprefect.simulator.generator import Generator
from hexprefect.simulator.outcome import Summary
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.workload import Query

VARIANTS: tuple[tuple[str, Generator], ...] = (
    ("reference", Generator()),
    (
        "our graph, as many corrections as the reference",
        Generator(shape="ours", max_corrections=None),
    ),
    ("our graph", Generator(shape="ours")),
    ("our graph, prompts laid out for prefix caching", Generator(shape="ours", layout="schema")),
)
"""Each workflow by its generator, the reference first."""

_WANTED = 0.95
_HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Effect:
    """One workflow: its latency at low load, and the load it bears."""

    workflow: str
    mean_s_at_low_load: float
    capacity_qps: float
    """The highest rate at which 95 % of queries meet their SLO."""

    def as_record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "workflow": self.workflow,
            "mean_s_at_low_load": self.mean_s_at_low_load,
            "capacity_qps_at_95": self.capacity_qps,
        }


def workflow_effect(
    cluster: Cluster,
    policy: Policy,
    *,
    family: str = "bird",
    number: int = 300,
    seeds: int = 3,
    slo_scale: float = 3.0,
    low_load: float = 0.2,
    lasts_s: float = 1500.0,
    progress: Callable[[Effect], object] | None = None,
) -> list[Effect]:
    """Measure every variant; the reference comes first.

    Args:
        cluster: the instances.
        policy: the same for all.
        family: of the generated questions.
        number: queries a run at least; more where the rate is high.
        seeds: runs a point.
        slo_scale: in multiples of the reference workflow's duration alone.
        low_load: rate of the latency measurement, as a share of the reference's capacity.
        lasts_s: how long a run lasts at least; a shorter one ends before a queue has built up.
        progress: called after each variant.
    """
    reference = Generator(family=family).some(number)
    slos = [slo_scale * query.alone_seconds(cluster.profiles) for query in reference]
    low_rate = low_load * capacity(reference, cluster)
    effects = []
    for name, generator in VARIANTS:
        plain = replace(generator, family=family).some(number)
        queries = tuple(
            replace(query, slo_s=slo_s) for query, slo_s in zip(plain, slos, strict=True)
        )

        def measure(rate: float, queries: tuple[Query, ...] = queries) -> list[Summary]:
            return [
                Experiment(
                    trace=family,
                    queries=queries,
                    cluster=cluster,
                    policy=policy,
                    rate=rate,
                    seed=seed,
                    number=max(number, round(rate * lasts_s)),
                )
                .run()
                .summary()
                for seed in range(seeds)
            ]

        effect = Effect(
            name,
            fmean(summary.mean_s for summary in measure(low_rate)),
            _highest_rate(measure, low_rate),
        )
        effects.append(effect)
        if progress is not None:
            progress(effect)
    return effects


def _highest_rate(measure: Callable[[float], list[Summary]], start: float) -> float:
    """The highest rate that still meets the wanted attainment, by doubling and halving."""

    def bears(rate: float) -> bool:
        return fmean(summary.slo_attainment for summary in measure(rate)) >= _WANTED

    low, high = 0.0, start
    while bears(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if bears(middle):
            low = middle
        else:
            high = middle
    return low
