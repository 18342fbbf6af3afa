"""Unrolled placement: `placement.place_by_tables` and `place_by_clock`, written out.

In Python a loop over four instances spends more time on being a loop, on tuples, lists and
iterators, than on the arithmetic in it: written out, the same operations in the same order take a
third of the time, and dispatch was a sixth of a simulation. So the straight-line source for a
number of instances is made here, from the lines below, once for each cluster. The functions in
`placement` say what it means; tests hold the two together bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from hexprefect.scheduling.occupancy import Coefficients

MOST_UNROLLED = 32
"""Instances up to which source is written out; a loop serves larger clusters."""

PlaceByTables = Callable[[Sequence[float], float, Sequence[float]], tuple[int, float]]
"""`(starts_s, output_tokens, queue_delay_s)` → index and `t_comp`."""

PlaceByClock = Callable[
    [
        int,
        float,
        Sequence[int],
        Sequence[int],
        Sequence[int],
        Sequence[float],
        Sequence[float],
        Sequence[float],
        float,
    ],
    tuple[int, float],
]
"""The arguments of `placement.place_by_clock`, in order → index and `t_comp`."""

_BY_TABLES_EACH = """
cost_# = start_# + each_output_# * output_tokens
if cost_# > longest: longest = cost_#
if delay_# > fullest: fullest = delay_#
"""

_BY_TABLES_SCORE = "speed * cost_# + load * delay_#"

# Whole numbers become floats once: a product of the two takes three times as long as one of floats.
_BY_CLOCK_EACH = """
if beside_# > most_#: beside_# = most_#
others = 1.0 * beside_#
uncached = tokens - cached_#
cost_# = fixed_# + each_input_# * uncached
cost_# += each_output_# * (1.0 + growth_# * others) * output_tokens
weighed_# = cost_# + others * each_input_# * uncached + others * stall_# * output_tokens
if weighed_# > longest: longest = weighed_#
delay_# = until_# - now
if delay_# < waiting_#: delay_# = waiting_#
if delay_# > fullest: fullest = delay_#
"""

_BY_CLOCK_SCORE = "speed * weighed_# + load * delay_#"


def placing_by_tables(profiles: Sequence[Coefficients], *, alpha: float) -> PlaceByTables:
    """`place_by_tables` for one cluster and one α; at most `MOST_UNROLLED` instances."""
    made: PlaceByTables = _maker(
        len(profiles),
        arguments="starts_s, output_tokens, queue_delay_s",
        unpacked=(("start", "starts_s"), ("delay", "queue_delay_s")),
        each=_BY_TABLES_EACH,
        score=_BY_TABLES_SCORE,
    )(profiles, alpha)
    return made


def placing_by_clock(profiles: Sequence[Coefficients], *, alpha: float) -> PlaceByClock:
    """`place_by_clock` for one cluster and one α; at most `MOST_UNROLLED` instances."""
    made: PlaceByClock = _maker(
        len(profiles),
        arguments="input_tokens, output_tokens, cached_tokens, admitted, most_beside, busy_until, "
        "waiting_s, stall_s, now",
        unpacked=(
            ("cached", "cached_tokens"),
            ("beside", "admitted"),
            ("most", "most_beside"),
            ("until", "busy_until"),
            ("waiting", "waiting_s"),
            ("stall", "stall_s"),
        ),
        first="tokens = 1.0 * input_tokens",
        each=_BY_CLOCK_EACH,
        score=_BY_CLOCK_SCORE,
    )(profiles, alpha)
    return made


@cache
def _maker(
    number: int,
    *,
    arguments: str,
    unpacked: tuple[tuple[str, str], ...],
    first: str = "",
    each: str,
    score: str,
) -> Callable[[Sequence[Coefficients], float], Any]:
    """Compile what makes the function of a cluster and an α. Nothing but the number of instances
    finds its way into the source."""
    source = "\n".join(
        (
            "def make(profiles, alpha):",
            *_indented(1, _coefficient_lines(number)),
            f"    def place({arguments}):",
            *_indented(2, _place_lines(number, unpacked, first, each, score)),
            "    return place",
        )
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<placement over {number} instances>", "exec"), namespace)
    make: Callable[[Sequence[Coefficients], float], Any] = namespace["make"]
    return make


def _coefficient_lines(number: int) -> Iterator[str]:
    for index in range(number):
        yield (
            f"fixed_{index}, each_input_{index}, each_output_{index}, growth_{index}"
            f" = profiles[{index}]"
        )


def _place_lines(
    number: int, unpacked: Sequence[tuple[str, str]], first: str, each: str, score: str
) -> Iterator[str]:
    for name, argument in unpacked:
        yield f"{', '.join(f'{name}_{index}' for index in range(number))}, = {argument}"
    yield "longest = fullest = 0.0"
    yield first
    for index in range(number):
        yield from each.strip().replace("#", str(index)).splitlines()
    yield "speed = alpha / longest if longest > 0 else 0.0"
    yield "load = (1.0 - alpha) / fullest if fullest > 0 else 0.0"
    yield f"lowest = {score.replace('#', '0')}"
    yield "best = 0; completion_s = cost_0"
    for index in range(1, number):
        yield f"score = {score.replace('#', str(index))}"
        yield f"if score < lowest: lowest = score; best = {index}; completion_s = cost_{index}"
    yield "return best, completion_s"


def _indented(depth: int, lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield "    " * depth + line
