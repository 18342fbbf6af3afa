"""When two results are the same: the definitions of BIRD and Spider, each under its own name.

Pure functions over rows as a driver gives them: tuples of None, int, float, str, bytes, Decimal.
As in the originals 1 equals 1.0, and names of columns do not count. NaN equals NaN.

- `bird_ex`: https://github.com/AlibabaResearch/DAMO-ConvAI, `bird/llm/src/evaluation.py`;
- `bird_soft_f1`: https://github.com/bird-bench/mini_dev, `evaluation/evaluation_f1.py`;
- `spider_execution`: https://github.com/taoyds/test-suite-sql-eval, `exec_eval.py`.

`tests/evaluation/test_official_agreement.py` holds them to the originals.
"""

from __future__ import annotations

import decimal
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

Row = tuple[Any, ...]


NAN = float("nan")
"""The one that stands for all: equal to itself where Python looks at objects before values."""


def bird_ex(predicted: Sequence[Row], gold: Sequence[Row]) -> bool:
    """BIRD's execution accuracy: the same set of rows.

    The order of rows and how often one stands there do not count; the order of columns does.
    """
    return set(_with_one_nan(predicted)) == set(_with_one_nan(gold))


def bird_soft_f1(predicted: Sequence[Row], gold: Sequence[Row]) -> float:
    """BIRD's soft F1: how much of each row is right, rows paired by their position.

    Repeated rows are dropped first, the earliest kept. In a pair a value counts as found when the
    other row has it anywhere; all counts are shares of the gold row's width. A row without partner
    is one whole mistake.

    Returns:
        2 · precision · recall / (precision + recall), 0 to 1; 1 for two empty results.
    """
    if not predicted and not gold:
        return 1.0
    found, surplus, missing = 0.0, 0.0, 0.0
    predicted_rows = list(dict.fromkeys(_with_one_nan(predicted)))
    gold_rows = list(dict.fromkeys(_with_one_nan(gold)))
    for ours, theirs in zip(predicted_rows, gold_rows, strict=False):
        width = len(theirs)
        found += sum(value in theirs for value in ours) / width
        surplus += sum(value not in theirs for value in ours) / width
        missing += sum(value not in ours for value in theirs) / width
    surplus += max(0, len(predicted_rows) - len(gold_rows))
    missing += max(0, len(gold_rows) - len(predicted_rows))
    precision = found / (found + surplus) if found + surplus else 0.0
    recall = found / (found + missing) if found + missing else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def spider_execution(predicted: Sequence[Row], gold: Sequence[Row], *, order_matters: bool) -> bool:
    """Spider's execution accuracy: the same bag of rows under some order of the columns.

    Args:
        predicted: rows of the prediction.
        gold: rows of the gold statement.
        order_matters: whether rows must also come in the same order; the original asks whether the
            gold statement's text contains ORDER BY anywhere.
    """
    if not predicted and not gold:
        return True
    if len(predicted) != len(gold) or len(predicted[0]) != len(gold[0]):
        return False
    ours, theirs = _with_one_nan(predicted), _with_one_nan(gold)
    return _pass_quick_check(ours, theirs, order_matters) and _columns_can_be_ordered(
        ours, theirs, order_matters
    )


def _with_one_nan(rows: Sequence[Row]) -> Sequence[Row]:
    """NaN equals NaN, as in GROUP BY. The originals never meet one: SQLite has none."""
    if not any(is_nan(value) for row in rows for value in row):
        return rows
    return [tuple(NAN if is_nan(value) else value for value in row) for row in rows]


def is_nan(value: object) -> bool:
    """Whether a value is a number and says that it is none."""
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, decimal.Decimal) and value.is_nan()


def _pass_quick_check(predicted: Sequence[Row], gold: Sequence[Row], order_matters: bool) -> bool:
    """The original's first look, which sorts the values of each row by their text and type.

    It is no mere shortcut: because `1` and `1.0` sort differently among other values, it turns away
    a few results that are equal in every other respect. Verdicts must agree in these, too.
    """
    ours = [_sorted_by_text(row) for row in predicted]
    theirs = [_sorted_by_text(row) for row in gold]
    return ours == theirs if order_matters else set(ours) == set(theirs)


def _sorted_by_text(row: Row) -> Row:
    return tuple(sorted(row, key=lambda value: f"{value}{type(value)}"))


def _columns_can_be_ordered(
    predicted: Sequence[Row], gold: Sequence[Row], order_matters: bool
) -> bool:
    ours, theirs = list(zip(*predicted, strict=True)), list(zip(*gold, strict=True))
    if order_matters:
        # Row by row equal: then the columns are equal as whole lists, each with a partner.
        return Counter(ours) == Counter(theirs)
    return any(True for _ in column_orders(ours, theirs))


def column_orders(ours: Sequence[Row], theirs: Sequence[Row]) -> Iterator[tuple[int, ...]]:
    """Ways to choose a column of ours for each of theirs, so that the bags of rows are equal.

    Ours may have more columns than theirs. The original tries every order; this grows an order
    column by column and drops it as soon as the rows so far differ as bags, which leaves few.

    Args:
        ours: columns, each as long as the others.
        theirs: columns of the same length.

    Yields:
        Positions in `ours`, in the order of `theirs`; of equal columns only the first is tried.
    """
    bags = [Counter(zip(*theirs[: size + 1], strict=True)) for size in range(len(theirs))]
    alone = [Counter(column) for column in ours]
    fits = [
        [position for position, bag in enumerate(alone) if bag == wanted]
        for wanted in (Counter(column) for column in theirs)
    ]
    growing: list[tuple[int, ...]] = [()]
    while growing:
        chosen = growing.pop()
        if len(chosen) == len(theirs):
            yield chosen
            continue
        tried: set[Row] = set()
        for position in reversed(fits[len(chosen)]):
            column = ours[position]
            if position in chosen or column in tried:
                continue
            tried.add(column)
            longer = (*chosen, position)
            rows = zip(*(ours[item] for item in longer), strict=True)
            if Counter(rows) == bags[len(chosen)]:
                growing.append(longer)
