"""A simulated instance admits what `admit` admits."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import Profile, Waiting, admit
from hexprefect.simulator import POLICIES, Call, EngineOptions, Query
from hexprefect.simulator.cluster import Instance
from hexprefect.simulator.instance import LOOK_AHEAD, SimulatedInstance
from hexprefect.simulator.requests import QueryRun, Request
from hexprefect.simulator.tables import Tables

PROFILE = Profile("one", 0.01, 3e-4, 0.02, 0.0, 1_000)
TABLE = Tables([PROFILE]).of(Query((Call("only", 1, 1),)))


def waiting(number: int, kv_tokens: int, passed_over: int) -> Request:
    run = QueryRun(number, TABLE, arrived_at=0.0, deadline=1.0, standalone_s=0.0)
    request = Request(number, run, TABLE.calls[0], 1.0, 0.0)
    request.kv_tokens = kv_tokens
    request.passed_over = passed_over
    return request


@settings(max_examples=100)
@given(
    queue=st.lists(st.tuples(st.integers(1, 700), st.integers(0, 9)), min_size=1, max_size=24),
    reserved=st.integers(0, 1_000),
    depth=st.integers(2, 6),
)
def test_who_starts_and_who_is_passed_over(
    queue: list[tuple[int, int]], reserved: int, depth: int
) -> None:
    policy = replace(POLICIES["hexgen"], depth=depth, slowdown=None)
    # One is inside already: to an empty instance everything fits.
    instance = SimulatedInstance(
        Instance("one", PROFILE, EngineOptions()),
        policy,
        number=0,
        admitted=[1],
        most_beside=[0],
        stall_s=[0.0],
    )
    instance.reserved_kv = reserved
    requests = [waiting(number, *each) for number, each in enumerate(queue)]
    instance.queue = [(float(r.number), 0.0, r.number, r) for r in requests]
    left = {r.number: Waiting(str(r.number), r.number, 0.0, r.kv_tokens, r.passed_over)
            for r in requests}  # fmt: skip

    expected = []
    free_kv = 1_000 - reserved
    for _ in range(depth - 1):
        head = list(left.values())[:LOOK_AHEAD]
        decided = admit(head, free_slots=1, free_kv_tokens=free_kv)
        for name in decided.passed_over:
            each = left[int(name)]
            left[int(name)] = replace(each, passed_over=each.passed_over + 1)
        if not decided.admitted:
            break
        chosen = left.pop(int(decided.admitted[0]))
        free_kv -= chosen.kv_tokens
        expected.append(int(chosen.id))

    assert [request.number for request in instance.startable(0.0)] == expected
    assert instance.admitted == 1 + len(expected)
    assert [entry[2] for entry in instance.queue] == list(left)
    assert [entry[3].passed_over for entry in instance.queue] == [
        each.passed_over for each in left.values()
    ]


def test_what_is_late_lets_everything_in_time_go_first() -> None:
    policy = replace(POLICIES["hexprefect-attainment"], depth=2, slowdown=None)
    instance = SimulatedInstance(
        Instance("one", PROFILE, EngineOptions()),
        policy,
        number=0,
        admitted=[0],
        most_beside=[1],
        stall_s=[0.0],
    )
    requests = [waiting(number, 10, 0) for number in range(3)]
    for request, last_chance in zip(requests, (200.0, 50.0, 200.0), strict=True):
        request.last_chance = last_chance
    instance.queue = [(float(r.number), 0.0, r.number, r) for r in requests]
    assert [request.number for request in instance.startable(100.0)] == [0, 2]
    [(key, _, number, late)] = instance.queue
    assert (number, late.last_chance) == (1, inf)
    assert key == 1.0 + 8.0 * late.run.slo_s
