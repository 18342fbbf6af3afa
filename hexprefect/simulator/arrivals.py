"""Arrivals: when queries come, in seconds from the beginning, never decreasing.

| text | meaning |
| --- | --- |
| `poisson` | independent arrivals at the given rate |
| `gamma:CV` | gaps of a gamma distribution with coefficient of variation `CV`: above 1, bursts |
| `deterministic` | one each `1/rate` seconds |
| `phases:RATExSECONDS,…` | Poisson, the rate changing by phase and repeating: `phases:2x30,30x10` |
| `recorded` | each query at its own moment, stretched so that the mean rate is the given one |
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from hexprefect.errors import HexprefectError

_LEAST_VARIATION, _MOST_VARIATION = 0.01, 100.0
"""Of a gamma distribution whose gaps floats can tell apart."""

_LEAST_A_ROUND = 0.001
"""Arrivals in one round of phases: of fewer, a run would spend its time on empty rounds."""

ArrivalKind = Literal["poisson", "gamma", "deterministic", "phases", "recorded"]


class BadArrivals(HexprefectError):
    """An arrival process that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One arrival process, without its rate."""

    kind: ArrivalKind = "poisson"
    variation: float = 1.0
    """Coefficient of variation of the gaps (`gamma`)."""
    phases: tuple[tuple[float, float], ...] = ()
    """`(queries a second, seconds)` of each phase (`phases`)."""

    @property
    def is_random(self) -> bool:
        """Whether another seed gives other moments."""
        return self.kind not in ("deterministic", "recorded")

    @property
    def phases_rate(self) -> float:
        """Queries a second over all phases (`phases`)."""
        return sum(rate * seconds for rate, seconds in self.phases) / sum(
            seconds for _, seconds in self.phases
        )


def parse_arrivals(text: str) -> Arrivals:
    """Read the text form.

    Raises:
        BadArrivals: naming the text and the forms there are.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind in ("poisson", "deterministic", "recorded") and not rest:
            return Arrivals(kind=kind)  # type: ignore[arg-type]
        if kind == "gamma":
            variation = float(rest)
            if _LEAST_VARIATION <= variation <= _MOST_VARIATION:
                return Arrivals(kind="gamma", variation=variation)
        if kind == "phases":
            phases = []
            for phase in rest.split(","):
                rate, _, seconds = phase.partition("x")
                phases.append((float(rate), float(seconds)))
            if all(0 <= rate < inf and 0 < seconds < inf for rate, seconds in phases) and (
                _LEAST_A_ROUND <= sum(rate * seconds for rate, seconds in phases) < inf
            ):
                return Arrivals(kind="phases", phases=tuple(phases))
    except ValueError:
        pass
    raise BadArrivals(
        f"{text!r} is no arrival process.",
        remedy=f"Use poisson, gamma:CV with CV from {_LEAST_VARIATION:g} to {_MOST_VARIATION:g}, "
        f"deterministic, phases:RATExSECONDS,… with {_LEAST_A_ROUND:g} arrivals a round at least, "
        "or recorded.",
    )


def moments(
    arrivals: Arrivals, rate: float, seed: int, recorded: Sequence[float] = ()
) -> Iterator[float]:
    """The moments of arrival, without end (`recorded`: as many as there are).

    Args:
        arrivals: the process.
        rate: queries a second; `phases` has its own rates and does not read it.
        seed: of the process's own random numbers.
        recorded: moments of the workload, in order, for `recorded`.

    Raises:
        BadArrivals: for a rate that is not positive and finite, or a recording without moments.
    """
    if arrivals.kind != "phases" and not 0 < rate < inf:
        raise BadArrivals(f"the rate is {rate}", remedy="Give a positive rate in queries a second.")
    rng = random.Random(f"arrivals {seed}")
    match arrivals.kind:
        case "poisson":
            return _gaps(lambda: rng.expovariate(rate))
        case "gamma":
            shape = 1.0 / arrivals.variation**2
            return _gaps(lambda: rng.gammavariate(shape, 1.0 / (rate * shape)))
        case "deterministic":
            return _gaps(lambda: 1.0 / rate)
        case "phases":
            return _phases(arrivals.phases, rng)
        case "recorded":
            return _recorded(recorded, rate)


def _gaps(gap) -> Iterator[float]:  # type: ignore[no-untyped-def]
    now = 0.0
    while True:
        now += gap()
        yield now


def _phases(phases: Sequence[tuple[float, float]], rng: random.Random) -> Iterator[float]:
    # A Poisson process has no memory: one whose gap would end beyond its phase starts anew there.
    begin = 0.0
    while True:
        for rate, seconds in phases:
            now = begin
            while rate > 0 and (now := now + rng.expovariate(rate)) < begin + seconds:
                yield now
            begin += seconds


def recorded_rate(recorded: Sequence[float]) -> float:
    """Queries a second from the first of some moments, in order, to the last; where no time passes,
    as many as there are."""
    if len(recorded) < 2 or recorded[-1] <= recorded[0]:
        return float(len(recorded))
    return (len(recorded) - 1) / (recorded[-1] - recorded[0])


def _recorded(recorded: Sequence[float], rate: float) -> Iterator[float]:
    if not recorded:
        raise BadArrivals(
            "the workload has no recorded arrivals.",
            remedy="Use a JSONL workload with `arrived_at`, or another arrival process.",
        )
    stretch = recorded_rate(recorded) / rate
    for moment in recorded:
        yield (moment - recorded[0]) * stretch
