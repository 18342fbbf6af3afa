"""Columns that only order: who asks for the country with the most singers did not ask how many.

A small model selects what it ranks by: `SELECT country, COUNT(*) … ORDER BY COUNT(*) DESC LIMIT 1`.
The gold statements of Spider and defog that rank and show what they rank by are asked for it in
words: "how many", "and its population".
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from hexprefect.text2sql.linking import stem
from hexprefect.text2sql.names import words_of

_WORDS_OF_QUANTITY = frozenset(
    {
        "how", "many", "much", "number", "count", "total", "amount", "quantity", "sum", "average",
        "avg", "mean", "maximum", "minimum", "max", "min", "frequency", "percentage", "percent",
        "ratio", "share", "time", "value", "corresponding", "respective", "all", "detail",
        "information", "everything", "when", "date", "day", "year", "old", "price", "cost", "by",
        "size", "length", "weight", "height", "score", "rating", "rate",
    }
)  # fmt: skip
_WORDS_OF_RANK = frozenset(
    {
        "most", "least", "fewest", "highest", "lowest", "largest", "smallest", "biggest", "oldest",
        "youngest", "longest", "shortest", "earliest", "latest", "newest", "heaviest", "lightest",
        "fastest", "slowest", "best", "worst", "greatest", "top", "recent", "recently",
    }
)  # fmt: skip


def without_ranking_column(sql: str, question: str, *, dialect: str) -> str | None:
    """The statement without the column that it ranks by, where the question does not ask for it.

    None unless the statement ranks (ORDER BY one thing, with a LIMIT) and selects that thing beside
    others, and the question is one about a rank, in English, without a word of quantity and without
    any of the column's own words.

    Args:
        sql: a statement that the database accepts.
        question: what was asked.
        dialect: sqlglot's name of the SQL dialect.
    """
    text = re.sub(r"\bat (?:least|most)\b", "", question.casefold())
    asked = {stem(word) for word in re.findall(r"[^\W_]+", text)}
    if not _WORDS_OF_RANK & asked or _WORDS_OF_QUANTITY & asked:
        return None
    try:
        tree = sqlglot.parse_one(sql, dialect=dialect)
    except (SqlglotError, ValueError, RecursionError):
        return None
    shown = _shown_rank(tree)
    if shown is None or _words(shown) & asked:
        return None
    is_list = "," in question or "and" in asked
    if is_list and shown.find(exp.AggFunc) is None:
        return None  # "The name and birthday of the youngest": one of them may mean the column.
    order = tree.args["order"].expressions[0]
    order.set("this", shown.unalias().copy())
    tree.set("expressions", [item for item in tree.expressions if item is not shown])
    return tree.sql(dialect=dialect)


def _shown_rank(tree: exp.Expr) -> exp.Expr | None:
    """What a statement both ranks by and selects, beside something else."""
    if not isinstance(tree, exp.Select) or tree.args.get("distinct"):
        return None
    group = tree.args.get("group")
    if group is not None and group.find(exp.Literal) is not None:
        return None  # GROUP BY 2 counts the columns.
    order = tree.args.get("order")
    if order is None or len(order.expressions) != 1 or tree.args.get("limit") is None:
        return None
    ranked = order.expressions[0].this
    shown = [item for item in tree.expressions if _is_of(item, ranked)]
    return shown[0] if len(shown) == 1 and len(tree.expressions) > 1 else None


def _is_of(item: exp.Expr, ranked: exp.Expr) -> bool:
    """Whether a selected expression is what is ranked by: its alias, the same column or call."""
    if item.unalias() == ranked:
        return True
    is_bare = isinstance(ranked, exp.Column) and not ranked.table
    return is_bare and item.alias_or_name.casefold() == ranked.name.casefold()


def _words(item: exp.Expr) -> set[str]:
    """The words by which a question would ask for a column: its names, but for what is counted."""
    counted = {
        id(column) for call in item.find_all(exp.Count) for column in call.find_all(exp.Column)
    }
    names = [column.name for column in item.find_all(exp.Column) if id(column) not in counted]
    if item.alias:
        names.append(item.alias)
    return {stem(word) for name in names for word in words_of(name)}
