"""The tuner: α alone, as the paper has it, or α with the order and the admission depth.

A window of queries is replayed for each point of a grid, then of a finer grid around the best. The
points of a grid race: after each seed of the arrivals the worse of them drop out, so that most of
the time goes to those that may still win (successive halving, as Jamieson and Talwalkar, arXiv
1502.07943). Three laws hold: the choice is never worse than round-robin on the window, nor than any
other point that ran with all seeds, the policy to begin with among them; and the same window and
seeds give the same choice. Who cannot dispatch round-robin takes `Tuning.best_tuned`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
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

_KEPT = 0.4
"""Share of the points of a race that run with the next seed, too. On 28 windows of 100 queries 0.4
lost 0.04 % of the best P95 of a grid on average and 0.6 % once, as 0.5 to 0.7 did."""


class CannotTune(HexprefectError):
    """The request for tuning makes no sense."""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy of the search, and its figures on the window: means over the seeds that it ran
    with."""

    policy: Policy
    p95_s: float
    mean_s: float
    slo_attainment: float
    throughput_qps: float
    seeds: int
    """Of the arrivals: fewer than were asked for where it dropped out of the race."""

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
            "seeds": self.seeds,
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
    best_tuned: Point
    """The best point that has an α: the choice, except where round-robin is."""
    present: Point
    """The policy to begin with."""

    @property
    def policy(self) -> Policy:
        """The chosen policy."""
        return self.best.policy

    @property
    def round_robin_wins(self) -> bool:
        """Whether every α was worse than round-robin on the window."""
        return self.best is self.round_robin

    @property
    def comparison(self) -> str:
        """Round-robin's figures beside those of the best α, in words."""
        theirs, ours = (
            f"P95 {point.p95_s:.2f} s, mean {point.mean_s:.2f} s, "
            f"attainment {100 * point.slo_attainment:.1f} %"
            for point in (self.round_robin, self.best_tuned)
        )
        return f"{theirs}, against {ours} with α = {self.best_tuned.policy.alpha:g}"

    def as_record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "objective": self.objective,
            "choice": self.best.as_record(),
            "best_tuned": self.best_tuned.as_record(),
            "present": self.present.as_record(),
            "round_robin": self.round_robin.as_record(),
            "round_robin_wins": self.round_robin_wins,
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
        seeds: of the arrivals; figures are means over them. One is enough, and only one runs, where
            the moments of arrival do not depend on it.
        alphas: the grid.
        jointly: search the order, the depth and the overload policy as well, one after the other,
            twice around.
        orders: those that may be chosen; a store can keep its queues in some only.
        cores: processes at once.
        progress: called with every point, again when it has run with one more seed.

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
    seeds = tuple(seeds) if window.arrivals.is_random else tuple(seeds)[:1]
    search = _Search(window, objective, seeds, orders, cores, progress)
    round_robin, present = search.measure([POLICIES["rr-fcfs"], window.policy], seeds=len(seeds))
    if jointly:
        tuned = search.around(present)
    else:
        grid = [replace(window.policy, alpha=alpha) for alpha in alphas]
        tuned = search.challenge(present, grid)
    near = (round(tuned.policy.alpha + step, 3) for step in _FINE)
    tuned = search.challenge(
        tuned, [replace(tuned.policy, alpha=alpha) for alpha in near if 0 <= alpha <= 1]
    )
    best = round_robin if round_robin.cost(objective) < tuned.cost(objective) else tuned
    return Tuning(objective, tuple(search.points), best, round_robin, tuned, present)


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
        self._runs: dict[Policy, list[Summary]] = {}
        """One for each seed that a policy ran with, in their order."""

    @property
    def points(self) -> Iterable[Point]:
        """Everything measured, in order."""
        return [_mean_point(policy, runs) for policy, runs in self._runs.items()]

    def measure(self, policies: Collection[Policy], *, seeds: int) -> list[Point]:
        """The figures of policies with the first seeds, in order; nothing runs twice."""
        missing = [
            replace(self._window, policy=policy, seed=seed)
            for policy in dict.fromkeys(policies)
            for seed in self._seeds[len(self._runs.get(policy, ())) : seeds]
        ]
        for run in measure_all(missing, cores=self._cores):
            self._runs.setdefault(run.experiment.policy, []).append(run.summary)
        points = [_mean_point(policy, self._runs[policy][:seeds]) for policy in policies]
        if self._progress is not None:
            new = {experiment.policy for experiment in missing}
            for point in points:
                if point.policy in new:
                    self._progress(point)
        return points

    def race(self, policies: Collection[Policy]) -> Point:
        """The best of some policies with all seeds; the first of equals. After each seed the worse
        part of them drops out."""
        racing = list(dict.fromkeys(policies))
        for seeds in range(1, len(self._seeds)):
            points = sorted(self.measure(racing, seeds=seeds), key=self._cost)
            racing = [point.policy for point in points[: ceil(_KEPT * len(points))]]
        return min(self.measure(racing, seeds=len(self._seeds)), key=self._cost)

    def challenge(self, best: Point, policies: Collection[Policy]) -> Point:
        """`best`, unless one of some policies is better with all seeds."""
        others = [policy for policy in policies if policy != best.policy]
        return min(best, self.race(others), key=self._cost) if others else best

    def _cost(self, point: Point) -> tuple[float, float]:
        return point.cost(self._objective)

    def around(self, best: Point) -> Point:
        """One dimension after the other, each at its best given the others."""
        for _ in range(_ROUNDS):
            before = best
            for options in (_depths, _overloads, _order_options, _alphas):
                tried = [each for each in options(best.policy) if each.order in self._orders]
                best = self.challenge(best, tried)
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
        seeds=len(summaries),
    )
