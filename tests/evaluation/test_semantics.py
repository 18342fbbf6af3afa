"""When two results count as the same: the definitions, and an oracle that tries everything."""

from __future__ import annotations

import decimal
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.evaluation.semantics import (
    Row,
    bird_ex,
    bird_soft_f1,
    column_orders,
    spider_execution,
)

VALUES = st.one_of(st.none(), st.integers(0, 2), st.sampled_from(["a", "b"]))
"""Few, so that results often collide, and of no two types that are equal."""


@st.composite
def results(draw: st.DrawFn, *, least_rows: int = 0) -> list[Row]:
    width = draw(st.integers(1, 4))
    row = st.tuples(*[VALUES] * width)
    return draw(st.lists(row, min_size=least_rows, max_size=5))


def permuted(rows: list[Row], order: list[int]) -> list[Row]:
    return [tuple(row[position] for position in order) for row in rows]


def spider_by_definition(predicted: list[Row], gold: list[Row], order_matters: bool) -> bool:
    """Every order of the columns, tried."""
    if not predicted and not gold:
        return True
    if len(predicted) != len(gold) or len(predicted[0]) != len(gold[0]):
        return False
    for order in itertools.permutations(range(len(gold[0]))):
        moved = permuted(predicted, list(order))
        if moved == gold or (not order_matters and Counter(moved) == Counter(gold)):
            return True
    return False


class TestBirdEx:
    @given(results(), st.randoms())
    def test_neither_order_nor_repetition_of_rows_counts(
        self, rows: list[Row], chance: random.Random
    ) -> None:
        other = rows + rows[:2]
        chance.shuffle(other)
        assert bird_ex(other, rows)

    def test_the_order_of_columns_counts(self) -> None:
        assert not bird_ex([(1, 2)], [(2, 1)])

    def test_one_and_one_point_zero_are_equal_and_a_text_is_not(self) -> None:
        assert bird_ex([(1,)], [(1.0,)])
        assert not bird_ex([("1",)], [(1,)])

    @given(results(), results())
    def test_it_is_symmetric(self, ours: list[Row], theirs: list[Row]) -> None:
        assert bird_ex(ours, theirs) == bird_ex(theirs, ours)


class TestBirdSoftF1:
    @given(results())
    def test_the_gold_itself_is_perfect(self, rows: list[Row]) -> None:
        assert bird_soft_f1(rows, rows) == pytest.approx(1)

    @given(results(), results())
    def test_it_is_a_share(self, ours: list[Row], theirs: list[Row]) -> None:
        assert 0 <= bird_soft_f1(ours, theirs) <= 1

    @given(results(least_rows=1), st.data())
    def test_the_order_of_columns_does_not_count(self, rows: list[Row], data: Any) -> None:
        order = data.draw(st.permutations(range(len(rows[0]))))
        # Repeated rows are dropped alike, whatever the order of columns.
        assert bird_soft_f1(permuted(rows, order), rows) == pytest.approx(1)

    def test_rows_are_paired_by_position(self) -> None:
        assert bird_soft_f1([("b",), ("a",)], [("a",), ("b",)]) == 0

    def test_an_extra_column_costs_precision(self) -> None:
        # Found 1, surplus 1/1, missing 0: precision 1/2, recall 1.
        assert bird_soft_f1([("a", "x")], [("a",)]) == pytest.approx(2 / 3)

    def test_a_missing_row_costs_recall(self) -> None:
        assert bird_soft_f1([("a",)], [("a",), ("b",)]) == pytest.approx(2 / 3)

    def test_repeated_rows_are_dropped_first(self) -> None:
        assert bird_soft_f1([("a",), ("a",), ("b",)], [("a",), ("b",)]) == 1

    def test_nothing_against_nothing_is_perfect_and_against_something_is_nothing(self) -> None:
        assert bird_soft_f1([], []) == 1
        assert bird_soft_f1([], [("a",)]) == 0
        assert bird_soft_f1([("a",)], []) == 0


class TestSpiderExecution:
    @settings(max_examples=150)
    @given(results(), results(), st.booleans())
    def test_it_is_what_trying_every_order_gives(
        self, ours: list[Row], theirs: list[Row], order_matters: bool
    ) -> None:
        expected = spider_by_definition(ours, theirs, order_matters)
        assert spider_execution(ours, theirs, order_matters=order_matters) == expected

    @settings(max_examples=150)
    @given(results(least_rows=2), st.data())
    def test_near_misses_are_judged_as_trying_every_order_does(
        self, rows: list[Row], data: Any
    ) -> None:
        """One column shuffled on its own: columns agree one by one, rows perhaps no more."""
        column = data.draw(st.integers(0, len(rows[0]) - 1))
        values = data.draw(st.permutations([row[column] for row in rows]))
        other = [
            (*row[:column], value, *row[column + 1 :])
            for row, value in zip(rows, values, strict=True)
        ]
        expected = spider_by_definition(other, rows, order_matters=False)
        assert spider_execution(other, rows, order_matters=False) == expected

    @given(results(least_rows=1), st.data(), st.booleans())
    def test_the_order_of_columns_does_not_count(
        self, rows: list[Row], data: Any, order_matters: bool
    ) -> None:
        order = data.draw(st.permutations(range(len(rows[0]))))
        assert spider_execution(permuted(rows, order), rows, order_matters=order_matters)

    @given(results(), st.randoms())
    def test_the_order_of_rows_counts_only_where_the_gold_orders(
        self, rows: list[Row], chance: random.Random
    ) -> None:
        other = rows.copy()
        chance.shuffle(other)
        assert spider_execution(other, rows, order_matters=False)
        ordered = spider_execution(other, rows, order_matters=True)
        assert ordered == spider_by_definition(other, rows, order_matters=True)

    @given(results(least_rows=1))
    def test_how_often_a_row_stands_there_counts(self, rows: list[Row]) -> None:
        assert not spider_execution([*rows, rows[0]], rows, order_matters=False)

    def test_two_empty_results_are_the_same(self) -> None:
        assert spider_execution([], [], order_matters=True)

    def test_another_width_is_another_result(self) -> None:
        assert not spider_execution([(1, 1)], [(1,)], order_matters=False)

    def test_the_quick_check_of_the_original_is_kept_with_its_oddity(self) -> None:
        """1.0 sorts before 10 and 1 behind it: the original takes these rows for different."""
        assert [(1.0, 10)] == [(1, 10)]
        assert not spider_execution([(1.0, 10)], [(1, 10)], order_matters=False)
        assert spider_execution([(2.0,)], [(2,)], order_matters=False)

    def test_many_alike_columns_are_judged_at_once(self) -> None:
        """Sixteen columns have 2 · 10¹³ orders."""
        chance = random.Random(7)
        rows = [tuple(chance.randrange(2) for _ in range(16)) for _ in range(200)]
        order = list(range(16))
        chance.shuffle(order)
        other = permuted(rows, order)
        assert spider_execution(other, rows, order_matters=False)
        other[0] = tuple(1 - value for value in other[0])
        assert not spider_execution(other, rows, order_matters=False)


class TestColumnOrders:
    def test_ours_may_have_more_columns(self) -> None:
        ours, theirs = [(9, 9), ("a", "b"), (1, 2)], [(2, 1), ("b", "a")]
        assert list(column_orders(ours, theirs)) == [(2, 1)]

    def test_columns_that_agree_one_by_one_may_not_agree_together(self) -> None:
        ours, theirs = [(1, 2), (1, 2)], [(1, 2), (2, 1)]
        assert list(column_orders(ours, theirs)) == []


@pytest.mark.parametrize("kind", [float, decimal.Decimal])
def test_no_number_equals_no_number(kind: Callable[[str], Any]) -> None:
    ours = [(kind("nan"), 1), (kind("nan"), 2)]
    theirs = [(kind("nan"), 1), (kind("nan"), 2)]
    assert bird_ex(ours, theirs)
    assert bird_soft_f1(ours, theirs) == 1
    for order_matters in (False, True):
        assert spider_execution(ours, theirs, order_matters=order_matters)
        turned = [row[::-1] for row in theirs]
        assert spider_execution(ours, turned, order_matters=order_matters)
    assert not bird_ex(ours, [(0.0, 1), (0.0, 2)])
    assert not spider_execution(ours, [(None, 1), (None, 2)], order_matters=False)
