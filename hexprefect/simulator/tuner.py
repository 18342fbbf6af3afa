"""The tuner: α alone, as the paper has it, or α with the order and the admission depth.

A window of queries is replayed for each point of a grid, then of a finer grid around the best. Two
laws hold: the choice is never worse than round-robin on the window, and the same window and seeds
give the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.order import ORDERS, Order
from hexprefect.simulator.experiment import Experiment, measure_all
from hexprefect.simulator.outcome import Summary
from hexprefect.simulator.policies import POLICIES, Policy

Objective = Literal["p95", "attainment", "mean"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

ALPHAS = tuple(round(0.05 * step, 2) for step in range(21))
"""The grid of α: 0, 0.05, … 1."""

_COARSE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
_FINE = (-0.03, -0.02, -0.01, 0.01, 0.02, 0.03)
_ROUNDS = 2


class CannotTune(HexprefectError):
    """The request for tuning makes no sense."""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy of the search, and its figures on the window: means over the seeds."""

    policy: Policy
    p95_s: float
    mean_s: float
    slo_attainment: float
    throughput_qps: float

    def cost(self, objective: Objective) -> tuple[float, float]:
        """What the search minimises; the second number decides ties."""
        match objective:
            case "p95":
                return (self.p95_s, self.mean_s)
            case "mean":
                return (self.mean_s, self.p95_s)
            case "attainment":
                return (-self.slo_attainment, self.p95_s)

    def as_record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        policy = self.policy
        return {
            "policy": policy.name,
            "alpha": policy.alpha if policy.tunes_alpha else None,
            "order": policy.order,
            "depth": policy.depth,
            "slowdown": policy.slowdown,
            "late_penalty": policy.late_penalty,
            "stretch": policy.stretch,
            "p95_s": self.p95_s,
            "mean_s": self.mean_s,
            "slo_attainment": self.slo_attainment,
            "throughput_qps": self.throughput_qps,
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a tuning run found."""

    objective: Objective
    points: tuple[Point, ...]
    """Everything that was tried, in order."""
    best: Point
    """The choice; round-robin itself where nothing was better on the window."""
    round_robin: Point

    @property
    def policy(self) -> Policy:
        """The chosen policy."""
        return self.best.policy

    def as_record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "objective": self.objective,
            "choice": self.best.as_record(),
            "round_robin": self.round_robin.as_record(),
            "grid": [point.as_record() for point in self.points],
        }


def tune(
    window: Experiment,
    *,
    objective: Objective = "p95",
    seeds: Sequence[int] = (0, 1, 2),
    alphas: Sequence[float] = ALPHAS,
    jointly: bool = False,
    orders: Collection[Order] = ORDERS,
    cores: int = 1,
    progress: Callable[[Point], object] | None = None,
) -> Tuning:
    """Find the best α, or α, order and depth together, for a window.

    Args:
        window: the queries, the cluster, the arrivals and the policy to begin with. Its seed is
            replaced by each of `seeds`.
        objective: what to minimise (`p95`, `mean`) or to maximise (`attainment`).
        seeds: of the arrivals; figures are means over them.
        alphas: the grid.
        jointly: search the order, the depth and the overload policy as well, one after the other,
            twice around.
        orders: those that may be chosen; a store can keep its queues in some only.
        cores: processes at once.
        progress: called with every point.

    Raises:
        CannotTune: when the policy has no α, or the grid or the seeds are empty.
    """
    if not window.policy.tunes_alpha:
        raise CannotTune(
            f"the policy {window.policy.name!r} has no α.",
            remedy=f"Tune one of: {', '.join(p.name for p in POLICIES.values() if p.tunes_alpha)}.",
        )
    if not alphas or not seeds or not all(0 <= alpha <= 1 for alpha in alphas):
        raise CannotTune("tuning needs at least one seed, and values of α between 0 and 1")
    search = _Search(window, objective, tuple(seeds), orders, cores, progress)
    round_robin = search.measure([POLICIES["rr-fcfs"]])[0]
    if jointly:
        best = search.around(replace(window.policy, alpha=window.policy.alpha))
    else:
        best = search.best(replace(window.policy, alpha=alpha) for alpha in alphas)
    near = (round(best.policy.alpha + step, 3) for step in _FINE)
    best = search.best(
        [best.policy, *(replace(best.policy, alpha=alpha) for alpha in near if 0 <= alpha <= 1)]
    )
    if round_robin.cost(objective) < best.cost(objective):
        best = round_robin
    return Tuning(objective, tuple(search.points), best, round_robin)


class _Search:
    """Measures policies on one window, each once."""

    def __init__(
        self,
        window: Experiment,
        objective: Objective,
        seeds: tuple[int, ...],
        orders: Collection[Order],
        cores: int,
        progress: Callable[[Point], object] | None,
    ) -> None:
        self._window = window
        self._objective = objective
        self._seeds = seeds
        self._orders = orders
        self._cores = cores
        self._progress = progress
        self._known: dict[Policy, Point] = {}

    @property
    def points(self) -> Iterable[Point]:
        """Everything measured, in order."""
        return self._known.values()

    def measure(self, policies: Iterable[Policy]) -> list[Point]:
        """The figures of policies, in order."""
        wanted = list(policies)
        new = [policy for policy in dict.fromkeys(wanted) if policy not in self._known]
        measured = measure_all(
            (
                replace(self._window, policy=policy, seed=seed)
                for policy in new
                for seed in self._seeds
            ),
            cores=self._cores,
        )
        summaries = iter(measured)
        for policy in new:
            point = _mean_point(policy, [next(summaries).summary for _ in self._seeds])
            self._known[policy] = point
            if self._progress is not None:
                self._progress(point)
        return [self._known[policy] for policy in wanted]

    def best(self, policies: Iterable[Policy]) -> Point:
        """The best of some policies; the first of equals."""
        return min(self.measure(policies), key=lambda point: point.cost(self._objective))

    def around(self, policy: Policy) -> Point:
        """One dimension after the other, each at its best given the others."""
        best = self.best([policy])
        for _ in range(_ROUNDS):
            before = best
            for options in (_depths, _overloads, _order_options, _alphas):
                tried = [each for each in options(best.policy) if each.order in self._orders]
                best = self.best([best.policy, *tried])
            if best is before:
                break
        return best


def _depths(policy: Policy) -> list[Policy]:
    limits = (None, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0)
    return [replace(policy, slowdown=slowdown) for slowdown in limits]


def _overloads(policy: Policy) -> list[Policy]:
    late = [replace(policy, late_penalty=8.0, stretch=stretch) for stretch in (1.0, 1.5, 2.0, 2.5)]
    return [replace(policy, late_penalty=None, stretch=1.0), *late]


def _order_options(policy: Policy) -> list[Policy]:
    return [
        replace(policy, order="urgency", ageing=0.0),
        replace(policy, order="laxity", ageing=0.0),
        replace(policy, order="deadline", ageing=0.0),
        *(replace(policy, order="remaining", ageing=ageing) for ageing in (0.0, 0.1, 0.3, 1.0)),
    ]


def _alphas(policy: Policy) -> list[Policy]:
    return [replace(policy, alpha=alpha) for alpha in _COARSE]


def _mean_point(policy: Policy, summaries: Sequence[Summary]) -> Point:
    figures = [asdict(summary) for summary in summaries]
    return Point(
        policy=policy,
        p95_s=fmean(each["p95_s"] for each in figures),
        mean_s=fmean(each["mean_s"] for each in figures),
        slo_attainment=fmean(each["slo_attainment"] for each in figures),
        throughput_qps=fmean(each["throughput_qps"] for each in figures),
    )
