"""Knowledge predicts what the plain functions of `scheduling` predict from the same histories."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.scheduling import Profile
from hexprefect.scheduling.occupancy import coefficients, completion_seconds_of, mean_profile
from hexprefect.scheduling.prediction import StageHistory, predicted_output_tokens
from hexprefect.scheduling.remaining import (
    MOST_VISITS,
    RemainingHistory,
    predicted_remaining_seconds,
    remaining_after,
)
from hexprefect.simulator import Call, Query
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.tables import Tables

PROFILES = (
    Profile("fast", 0.014, 0.0003, 0.0215, 0.0013, 90_000),
    Profile("fast", 0.014, 0.0003, 0.0215, 0.0013, 90_000),
    Profile("slow", 0.031, 0.0007, 0.0302, 0.0013, 30_000),
)
STAGES = ("link", "write", "judge")
EXPECTED = {"link": 100.0, "write": 0.0}


@st.composite
def queries(draw: st.DrawFn) -> Query:
    calls: list[Call] = []
    for index in range(draw(st.integers(1, 20))):
        needs = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else ()))
        calls.append(
            Call(
                draw(st.sampled_from(STAGES)),
                draw(st.integers(1, 5_000)),
                draw(st.integers(0, 900)),
                needs,
            )
        )
    return Query(tuple(calls), database=draw(st.sampled_from(["", "d1", "d2"])))


@settings(max_examples=25)
@given(st.lists(queries(), min_size=1, max_size=5), st.integers(1, 9))
def test_predictions_are_those_of_the_plain_functions(workload: list[Query], times: int) -> None:
    knowledge = Knowledge(PROFILES, EXPECTED)
    stages: dict[tuple[str, str], StageHistory] = {}
    remaining: dict[tuple[str, int], RemainingHistory] = {}
    standalone = RemainingHistory()
    mean = coefficients(mean_profile(PROFILES))
    for query in workload * times:
        for index, call in enumerate(query.calls):
            for database in {"", query.database}:
                key = (call.stage, database)
                stages[key] = stages.get(key, StageHistory()).after(
                    input_tokens=call.input_tokens, output_tokens=call.output_tokens
                )
            knowledge.request_finished(query, index)
        costs = [
            completion_seconds_of(mean, call.input_tokens, float(call.output_tokens))
            for call in query.calls
        ]
        after = remaining_after(costs, query.followers)
        for call, visit, seconds in zip(query.calls, query.visits, after, strict=True):
            visited = (call.stage, min(visit, MOST_VISITS))
            remaining[visited] = remaining.get(visited, RemainingHistory()).after(seconds)
        standalone = standalone.after(max(a + b for a, b in zip(costs, after, strict=True)))
        knowledge.query_finished(query)
        assert knowledge.standalone == standalone
        for stage in (*STAGES, "unseen"):
            for database in ("", "d1", "d2", "d3"):
                assert knowledge.output_tokens(stage, database) == predicted_output_tokens(
                    stages, stage, database, expected=EXPECTED.get(stage)
                )
            for visit in (0, 1, 5, MOST_VISITS, 40):
                assert knowledge.remaining_after(stage, visit) == predicted_remaining_seconds(
                    remaining, stage, visit
                )


@settings(max_examples=25)
@given(st.lists(queries(), min_size=1, max_size=3))
def test_a_query_alone_takes_what_the_workload_says(workload: list[Query]) -> None:
    knowledge = Knowledge(PROFILES)
    for query in workload:
        assert knowledge.alone_seconds(query) == query.alone_seconds(PROFILES)


def test_simulations_share_tables_and_learn_apart() -> None:
    tables = Tables(PROFILES)
    first, second = (Knowledge(PROFILES, EXPECTED, tables=tables) for _ in range(2))
    query = Query((Call("link", 10, 7),), database="d1")
    assert first.table(query) is second.table(query)
    first.request_finished(query, 0)
    first.query_finished(query)
    assert first.output_tokens("link", "") == 7.0
    assert second.output_tokens("link", "") == 100.0
    assert second.standalone == RemainingHistory()


def test_tables_of_a_long_stream_of_queries_are_forgotten() -> None:
    tables = Tables(PROFILES)
    for number in range(2_500):
        query = Query((Call("link", 10 + number, 7),))
        assert tables.of(query).query is query
        assert tables.of(query) is tables.of(query)
    assert tables.size <= 2_048
