"""What a result should be like, and what has become of it since the last night."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.reports.change import MOST_DETAILS, change_since
from hexprefect.reports.expectations import check_result
from hexprefect.reports.file import Expectation
from hexprefect.reports.numbers import as_number, shown_difference
from tests.reports.examples import item

ORDERS = item("status orders", ("open", 4), ("shipped", 10))


def unmet(expect: dict[str, Any], outcome=ORDERS, before=None) -> list[str]:
    findings = check_result(Expectation.model_validate(expect), outcome, before)
    assert findings, "nothing was checked"
    return [f"{one.check}: {one.detail}" for one in findings if not one.met]


@pytest.mark.parametrize(
    "expect",
    [
        {"columns": ["Status", "ORDERS"]},
        {"rows": 2},
        {"rows": {"min": 1}},
        {"rows": {"min": 0, "max": 2}},
        {"types": {"status": "text", "orders": "integer"}},
        {"types": {"orders": "number"}},
        {"checks": [{"column": "status", "not_null": True, "unique": True}]},
        {"checks": [{"column": "status", "one_of": ["open", "shipped", "cancelled"]}]},
        {"checks": [{"column": "orders", "at_least": 4, "at_most": 10}]},
        {"checks": [{"column": "orders", "change_at_most": 0.1}]},
    ],
)
def test_what_holds(expect: dict[str, Any]) -> None:
    assert unmet(expect) == []


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"columns": ["status"]}, "the columns are status: they are status, orders"),
        ({"columns": ["orders", "status"]}, "the columns are orders, status: they are"),
        ({"rows": 1}, "there is 1 row: there are 2"),
        ({"rows": {"min": 3}}, "there are at least 3 rows: there are 2"),
        ({"types": {"status": "integer"}}, "status is integer: it is text"),
        ({"types": {"state": "text"}}, "there is no column state"),
        ({"checks": [{"column": "state", "unique": True}]}, "there is no column state"),
        ({"checks": [{"column": "orders", "at_least": 5}]}, "orders ≥ 5: 4 is not"),
        ({"checks": [{"column": "orders", "at_most": 3}]}, "orders ≤ 3: 4, 10 is not"),
        ({"checks": [{"column": "status", "at_least": 1}]}, "open, shipped is not"),
        ({"checks": [{"column": "status", "one_of": ["open"]}]}, "shipped is not"),
    ],
)
def test_what_does_not_hold_is_said_with_what_was_found(expect: dict[str, Any], said: str) -> None:
    [found] = unmet(expect)
    assert said in found


def test_nulls_and_repetitions_are_found() -> None:
    result = item("x", ("a",), (None,), ("a",))
    assert unmet({"checks": [{"column": "x", "not_null": True}]}, result) == [
        "x is never NULL: 1 are"
    ]
    assert unmet({"checks": [{"column": "x", "unique": True}]}, result) == [
        "x is unique: a stands twice"
    ]


def test_a_cut_result_has_no_known_end() -> None:
    assert unmet({"rows": {"min": 0, "max": 2}}, item("x", (1,), (2,), truncated=True)) == [
        "there are 0 to 2 rows: there are 2 or more"
    ]


def test_a_sum_that_jumps_is_found() -> None:
    before = item("status orders", ("open", 4), ("shipped", 3))
    check = {"checks": [{"column": "orders", "change_at_most": 0.5}]}
    assert unmet(check, ORDERS, before) == [
        "the sum of orders changes by at most 50 %: it went from 7 to 14"
    ]
    assert unmet({"checks": [{"column": "orders", "change_at_most": 1}]}, ORDERS, before) == []


# -- change -------------------------------------------------------------------------------------


def change(before, now, *compare_by: str):
    found = change_since(before, now, since="2026-11-30", compare_by=compare_by)
    assert found is not None
    return found


def test_a_single_number_shows_what_it_became() -> None:
    assert change(item("n", (400,)), item("n", (412,))).summary == "400 → 412 (+12, +3.0 %)"
    assert change(item("n", (400,)), item("n", (400,))).summary == "unchanged"
    assert change(item("n", ("a",)), item("n", ("b",))).summary == "a → b"
    assert change(item("n", (None,)), item("n", (3,))).summary == "NULL → 3"


def test_rows_that_came_went_and_changed_are_told_apart_by_their_key() -> None:
    before = item("status orders", ("open", 4), ("shipped", 10), ("lost", 1))
    now = item("status orders", ("shipped", 12), ("open", 4), ("cancelled", 2))
    found = change(before, now)
    assert found.since == "2026-11-30"
    assert found.summary == "1 changed, 1 new, 1 gone of 3 rows"
    assert found.details == (
        "new: cancelled",
        "gone: lost",
        "shipped: orders 10 → 12 (+2, +20.0 %)",
    )


def test_the_key_can_be_a_number() -> None:
    found = change(item("year n", (2023, 5)), item("year n", (2023, 6), (2024, 1)), "year")
    assert found.details == ("new: 2024", "2023: n 5 → 6 (+1, +20.0 %)")


def test_rows_that_no_key_tells_apart_are_counted() -> None:
    before = item("status n", ("open", 1), ("open", 2))
    assert change(before, item("status n", ("open", 1))).summary == "2 → 1 rows"
    now = item("status n", ("open", 1), ("open", 3))
    assert change(before, now).summary == "other values in 2 rows"


def test_other_columns_are_no_change_of_rows() -> None:
    assert change(item("a b", (1, 2)), item("a", (1,))).summary == "the columns were a, b"


def test_a_failed_item_is_not_compared() -> None:
    assert change_since(item("n", state="failed"), item("n", (1,)), since="x") is None


def test_many_changes_are_cut_and_counted() -> None:
    now = item("name", *((f"n{number}",) for number in range(100)))
    found = change(item("name"), now)
    assert len(found.details) == MOST_DETAILS + 1
    assert found.details[-1] == f"and {100 - MOST_DETAILS} more"


rows = st.dictionaries(st.sampled_from("abcdef"), st.integers(-9, 9)).map(
    lambda found: tuple(found.items())
)


@given(rows, rows)
def test_every_difference_is_counted_once(before, now) -> None:
    old, new = dict(before), dict(now)
    found = change(item("k v", *before), item("k v", *now))
    counts = {
        "changed": sum(old[key] != new[key] for key in old.keys() & new.keys()),
        "new": len(new.keys() - old.keys()),
        "gone": len(old.keys() - new.keys()),
    }
    if before == now:
        assert found.summary == "unchanged"
    elif not any(counts.values()):
        assert found.summary == "the same rows, reordered"
    else:
        for word, count in counts.items():
            assert (f"{count} {word}" in found.summary) == bool(count)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=2, max_value=10**9, min_value=-(10**9)
    )
)
def test_numbers_are_shown_exactly(number: Decimal) -> None:
    shown = shown_difference(number, number).split(",")[0]
    assert as_number(shown.replace("\N{NARROW NO-BREAK SPACE}", "")) == number


@pytest.mark.parametrize("cell", [True, None, "x", "", [1], {"a": 1}, "NaN", "Infinity"])
def test_what_is_no_number(cell: Any) -> None:
    assert as_number(cell) is None


def test_dates_are_compared_as_they_are() -> None:
    before = item("day n", (datetime.date(2026, 1, 1), 1))
    now = item("day n", (datetime.date(2026, 1, 1), 2))
    assert change(before, now).details == ("2026-01-01: n 1 → 2 (+1, +100.0 %)",)


def test_every_digit_of_a_long_number_counts() -> None:
    before, now = Decimal(12345678901234567890123456789012345), 12345678901234567890123456789012347
    thin = "\N{NARROW NO-BREAK SPACE}"
    said = shown_difference(before, Decimal(now)).replace(thin, "")
    assert said.startswith(f"{before} → {now} (+2, ")
    check = {"column": "n", "change_at_most": 1e-40}
    assert unmet({"checks": [check]}, item("n", (now,)), item("n", (before,)))


@pytest.mark.parametrize("text", ["9e1234567", "1e999999999", "1e99999", "1_000", " 1", "٣"])
def test_digits_of_a_text_are_no_number_of_that_size(text: str) -> None:
    """A hash of hexadecimal digits may look like one that nothing can hold."""
    assert as_number(text) is None
    change = change_since(item("n", (text,)), item("n", ("2",)), since="x")
    assert change is not None
    assert change.summary == f"{text} → 2"


def test_a_text_of_digits_is_a_name() -> None:
    change = change_since(item("code", ("007",)), item("code", ("0010",)), since="x")
    assert change is not None
    assert change.summary == "007 → 0010"
    change = change_since(item("k code", ("a", "007")), item("k code", ("a", "08")), since="x",
                          compare_by=("k",))  # fmt: skip
    assert change is not None
    assert change.details == ("a: code 007 → 08",)
