"""Whatever somebody wrote, the transition that keeps it goes through: on both engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.alpha import set_alpha
from hexprefect.store.words import storable

LONG = "ü" * 5_000
HOSTILE = f"\0 nul, \ud800 half a pair, {LONG}"
KEPT = f"\N{REPLACEMENT CHARACTER} nul, ? half a pair, {LONG}"


def test_words_of_any_kind_are_kept(process):
    process.instance("a")
    query = process.query(database=HOSTILE, question=HOSTILE)
    failed = process.submit(query)
    process.fail(failed, HOSTILE)
    assert process.row(failed.request_id)["error"] == KEPT
    assert process.attempts(failed.request_id)[0]["error"] == KEPT
    process.end(query, "failed", reason=HOSTILE, sql=HOSTILE)
    row = process.query_row(query)
    assert (row["question"], row["reason"], row["sql"]) == (KEPT, KEPT, KEPT)
    assert row["database"] == KEPT[:200]


def test_a_request_is_given_back_for_a_reason_of_any_length(process):
    """It would run for ever otherwise: this is how a failing instance gives up what it holds."""
    process.instance("a")
    query = process.query()
    running = process.submit(query)
    process.give_back(running, HOSTILE)
    decisions = process.store.read(
        lambda connection: connection.execute(
            tables.decisions.select().order_by(tables.decisions.c.id)
        ).all()
    )
    assert [decision.why for decision in decisions][-1] == KEPT[:200]
    process.set_state("a", "dead", HOSTILE)
    process.cancel(running.request_id)
    process.end(query, "cancelled")


def test_numbers_that_json_does_not_have_are_kept_as_none(process):
    process.instance("a")
    query = process.query()
    running = process.submit(query)
    numbers = {"of": [float("nan"), (float("inf"), 1.5)], "text": "NaN"}
    process.finish(running, result=numbers)
    assert process.row(running.request_id)["result"] == {"of": [None, [None, 1.5]], "text": "NaN"}
    process.end(query, answer={"p95": -float("inf")})
    assert process.query_row(query)["answer"] == {"p95": None}
    settings = {"p95": float("nan")}
    process.store.transact(lambda tx: set_alpha(tx, 0.5, reason="a test", evidence=settings))


@pytest.mark.parametrize(
    "name", ["x" * 301, "x\0y", "x\ud800y"], ids=["too long", "NUL", "half a pair"]
)
def test_names_are_compared_and_must_fit_as_they_are(process, name):
    process.instance("a")
    query = process.query()
    for bad in (
        lambda: process.instance(name),
        lambda: process.instance("b", pool=name),
        lambda: process.instance("b", model=name),
        lambda: process.query(tenant=name),
        lambda: process.query(id=name),
        lambda: process.submit(query, stage=name),
        lambda: process.submit(query, branch=name),
        lambda: process.submit(query, name),
    ):
        with pytest.raises(CallerMistake, match="character") as refused:
            bad()
        assert refused.value.remedy
    process.end(query)


@given(st.text(alphabet=st.characters(), max_size=50))
def test_storable_text_can_be_encoded_and_fitting_text_is_left_alone(text: str) -> None:
    kept = storable(text)
    assert "\0" not in kept
    kept.encode("utf-8")
    assert len(kept) == len(text)
    assert storable(kept) == kept
