"""One statement against the gold statements of its question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hexprefect.evaluation.causes import (
    Cause,
    cause_in_rows,
    cause_in_statement,
    cause_of_trouble,
)
from hexprefect.evaluation.execution import Executor, Outcome
from hexprefect.evaluation.gold_names import parsed
from hexprefect.evaluation.records import Verdict
from hexprefect.evaluation.semantics import Row, bird_ex, bird_soft_f1, spider_execution
from hexprefect.evaluation.statements import spider_order_matters, spider_text
from hexprefect.text2sql.schema import Schema


async def judge_statement(
    executor: Executor, url: str, sql: str | None, gold: Sequence[str]
) -> Verdict:
    """Compare a prediction with the gold by every measure.

    With several gold statements it is right by a measure when it is so against any; the soft F1 is
    the best.

    Args:
        executor: runs the statements.
        url: of the database.
        sql: the prediction; None when there is none.
        gold: the gold statement, then its alternatives.

    Raises:
        CallerMistake: the database cannot be opened or read.
    """
    golds = [(text, await executor.gold(url, text)) for text in gold]
    usable = [(text, outcome) for text, outcome in golds if outcome.rows is not None]
    if not usable:
        return Verdict(cause="gold failed", problem=golds[0][1].problem)
    if sql is None or not sql.strip():
        return Verdict(cause="no statement")
    schema = await executor.schema(url)
    predicted = await executor.predicted(url, sql)
    found, score = False, 0.0
    if predicted.rows is not None:
        found, score = await asyncio.to_thread(_by_bird, predicted.rows, usable)
    forgiving, strict = [
        await _by_spider(executor, url, sql, [text for text, _ in usable], schema, keep_distinct)
        for keep_distinct in (False, True)
    ]
    is_right = found and forgiving and strict
    return Verdict(
        bird_ex=found,
        bird_soft_f1=score,
        spider_execution=forgiving,
        spider_keep_distinct=strict,
        cause="right"
        if is_right
        else await asyncio.to_thread(_cause, sql, predicted, usable[0], schema),
        problem=predicted.problem,
    )


def _by_bird(rows: tuple[Row, ...], usable: Sequence[tuple[str, Outcome]]) -> tuple[bool, float]:
    golds = [outcome.rows or () for _, outcome in usable]
    return any(bird_ex(rows, gold) for gold in golds), max(
        bird_soft_f1(rows, gold) for gold in golds
    )


async def _by_spider(
    executor: Executor,
    url: str,
    sql: str,
    golds: Sequence[str],
    schema: Schema,
    keep_distinct: bool,
) -> bool:
    text = spider_text(sql, keep_distinct=keep_distinct, dialect=schema.dialect)
    predicted = await executor.predicted(url, text)
    if predicted.rows is None:
        return False
    for gold_sql in golds:
        gold_text = spider_text(gold_sql, keep_distinct=keep_distinct, dialect=schema.dialect)
        gold = await executor.gold(url, gold_text)
        if gold.rows is not None and await asyncio.to_thread(
            spider_execution,
            predicted.rows,
            gold.rows,
            order_matters=spider_order_matters(gold_text),
        ):
            return True
    return False


def _cause(sql: str, predicted: Outcome, gold: tuple[str, Outcome], schema: Schema) -> Cause:
    if predicted.rows is None:
        return cause_of_trouble(predicted)
    gold_sql, gold_outcome = gold
    in_rows = cause_in_rows(
        predicted.rows, gold_outcome.rows or (), order_matters=spider_order_matters(gold_sql)
    )
    if in_rows is not None:
        return in_rows
    trees = parsed(sql, schema.dialect), parsed(gold_sql, schema.dialect)
    if trees[0] is None or trees[1] is None:
        return "other structure"
    return cause_in_statement(trees[0], trees[1], schema)
