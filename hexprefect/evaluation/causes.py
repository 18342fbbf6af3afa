"""Why a prediction is wrong, found by comparing its result and its parsed statement with the gold.

The first that applies is the cause, from the crudest to the finest: a statement that did not run,
a result that is right but for its form, other tables, and so on. It is a reading aid for a report,
no verdict.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from sqlglot import exp

from hexprefect.evaluation.execution import Outcome
from hexprefect.evaluation.gold_names import names_in
from hexprefect.evaluation.semantics import Row, bird_ex, column_orders, spider_execution
from hexprefect.text2sql.schema import Schema

Cause = Literal[
    "right",
    "gold failed",
    "no statement",
    "abstained",
    "asked back",
    "refused by the guard",
    "unknown table",
    "unknown column",
    "syntax error",
    "other error",
    "timeout",
    "result too large",
    "other column order",
    "other row order",
    "repeated rows",
    "extra columns",
    "missing columns",
    "wrong tables",
    "wrong aggregation or grouping",
    "wrong columns",
    "wrong values",
    "wrong conditions",
    "wrong order or limit",
    "wrong joins",
    "other structure",
]

_RULES: dict[str, Cause] = {
    "catalogue": "unknown table",
    "column": "unknown column",
    "syntax": "syntax error",
}
_ERRORS: tuple[tuple[re.Pattern[str], Cause], ...] = (
    (
        re.compile(
            r"no such column|column .* does not exist|unknown column|column .* not found",
            re.IGNORECASE,
        ),
        "unknown column",
    ),
    (
        re.compile(
            r"no such table|relation .* does not exist|table .* (?:does not|doesn't) exist",
            re.IGNORECASE,
        ),
        "unknown table",
    ),
    (re.compile(r"syntax error|incomplete input", re.IGNORECASE), "syntax error"),
)


def cause_of_trouble(outcome: Outcome) -> Cause:
    """Why a statement gave no rows to compare."""
    match outcome.trouble:
        case "refused":
            return _RULES.get(outcome.rule or "", "refused by the guard")
        case "timeout":
            return "timeout"
        case "too large":
            return "result too large"
    said = outcome.problem or ""
    return next((cause for pattern, cause in _ERRORS if pattern.search(said)), "other error")


def cause_in_rows(
    predicted: Sequence[Row], gold: Sequence[Row], *, order_matters: bool
) -> Cause | None:
    """What is wrong with the form of a result that has the right values; None if they are not."""
    if not predicted or not gold:
        return None
    if spider_execution(predicted, gold, order_matters=order_matters):
        return None if bird_ex(predicted, gold) else "other column order"
    if order_matters and spider_execution(predicted, gold, order_matters=False):
        return "other row order"
    wider, narrower = len(predicted[0]), len(gold[0])
    if wider == narrower:
        once = [list(dict.fromkeys(rows)) for rows in (predicted, gold)]
        is_same = spider_execution(once[0], once[1], order_matters=False)
        return "repeated rows" if is_same else None
    if len(predicted) != len(gold):
        return None
    ours, theirs = list(zip(*predicted, strict=True)), list(zip(*gold, strict=True))
    if wider > narrower:
        return "extra columns" if any(True for _ in column_orders(ours, theirs)) else None
    return "missing columns" if any(True for _ in column_orders(theirs, ours)) else None


def cause_in_statement(predicted: exp.Expr, gold: exp.Expr, schema: Schema) -> Cause:
    """The first part of a statement that differs from the gold's."""
    if names_in(predicted, schema).tables != names_in(gold, schema).tables:
        return "wrong tables"
    ours, theirs = _plain(predicted), _plain(gold)
    parts: tuple[tuple[Cause, Callable[[exp.Expr], object]], ...] = (
        ("wrong aggregation or grouping", _aggregation),
        ("wrong columns", _projections),
        ("wrong conditions", lambda tree: _conditions(_without_values(tree))),
        ("wrong values", _conditions),
        ("wrong order or limit", _order_and_limit),
        ("wrong joins", _joins),
    )
    for cause, part in parts:
        if part(ours) != part(theirs):
            return cause
    return "other structure"


def _plain(tree: exp.Expr) -> exp.Expr:
    """The statement without what means nothing to a comparison: aliases, qualifiers, case."""

    def plain(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
            return exp.column(exp.to_identifier(node.name.casefold()))
        inner = node.this if isinstance(node, exp.Alias | exp.Paren) else None
        # What was replaced is not looked into by `transform`.
        return inner.transform(plain) if isinstance(inner, exp.Expr) else node

    return tree.transform(plain)


def _without_values(tree: exp.Expr) -> exp.Expr:
    return tree.transform(lambda node: exp.Var(this="?") if isinstance(node, exp.Literal) else node)


def _aggregation(tree: exp.Expr) -> object:
    functions = Counter(
        (node.key, node.find(exp.Distinct) is not None) for node in tree.find_all(exp.AggFunc)
    )
    groups = _texts(item for group in tree.find_all(exp.Group) for item in group.expressions)
    return functions, groups


def _projections(tree: exp.Expr) -> object:
    select = tree.find(exp.Select)
    return _texts(select.expressions if select is not None else ())


def _conditions(tree: exp.Expr) -> object:
    """Comparisons in WHERE and HAVING; the order and the sides of `=` do not count."""
    found = []
    for clause in tree.find_all(exp.Where, exp.Having):
        for node in clause.find_all(exp.Predicate):
            sides = [side.sql() for side in node.iter_expressions()]
            is_symmetric = isinstance(node, exp.EQ | exp.NEQ)
            found.append((node.key, *(sorted(sides) if is_symmetric else sides)))
    return Counter(found)


def _order_and_limit(tree: exp.Expr) -> object:
    orders = [item.sql() for order in tree.find_all(exp.Order) for item in order.expressions]
    limits = _texts(tree.find_all(exp.Limit, exp.Offset, exp.Fetch))
    return orders, limits


def _joins(tree: exp.Expr) -> object:
    found = []
    for join in tree.find_all(exp.Join):
        on = join.args.get("on")
        keys = [
            sorted(side.sql() for side in node.iter_expressions())
            for node in (on.find_all(exp.EQ) if on is not None else ())
        ]
        found.append((join.side, join.kind or "INNER", str(sorted(keys))))
    return Counter(found)


def _texts(nodes: Iterable[exp.Expr]) -> Counter[str]:
    return Counter(node.sql() for node in nodes)
