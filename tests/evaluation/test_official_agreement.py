"""Our verdicts are the official evaluators', on thousands of pairs, most of them wrong ones.

The originals are not ours to ship. `HEXPREFECT_TEST_OFFICIAL_EVALUATORS` names a folder with
`evaluation_ex.py`, `evaluation_f1.py` and `evaluation_utils.py` of bird-bench/mini_dev, and
`exec_eval.py` and `parse.py` of taoyds/test-suite-sql-eval; sqlparse must be installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from hexprefect.evaluation.execution import Executor
from hexprefect.evaluation.gold_names import parsed
from hexprefect.evaluation.questions import GoldQuestion, read_questions
from hexprefect.evaluation.verdicts import judge_statement

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
ORIGINALS = os.environ.get("HEXPREFECT_TEST_OFFICIAL_EVALUATORS")
PREDICTIONS = os.environ.get("HEXPREFECT_TEST_PREDICTIONS")
"""JSON lines of `id` and `sql` by a real model, to be compared, too."""

pytestmark = [
    pytest.mark.skipif(
        ORIGINALS is None,
        reason="HEXPREFECT_TEST_OFFICIAL_EVALUATORS names no folder with the originals",
    ),
    pytest.mark.skipif(
        not (DATA / "questions.jsonl").is_file(),
        reason="the question set ../shared/data is not on this machine",
    ),
    pytest.mark.timeout(1500),
]

Mutation = Callable[[exp.Expr], exp.Expr | None]


def reverse_columns(tree: exp.Expr) -> exp.Expr | None:
    select = tree.find(exp.Select)
    if select is None or len(select.expressions) < 2:
        return None
    select.set("expressions", select.expressions[::-1])
    return tree


def drop_distinct(tree: exp.Expr) -> exp.Expr | None:
    found = False
    for select in tree.find_all(exp.Select):
        found = found or select.args.get("distinct") is not None
        select.set("distinct", None)
    return tree if found else None


def add_distinct(tree: exp.Expr) -> exp.Expr | None:
    select = tree.find(exp.Select)
    if select is None or select.args.get("distinct") is not None:
        return None
    select.set("distinct", exp.Distinct())
    return tree


def other_literal(tree: exp.Expr) -> exp.Expr | None:
    where = tree.find(exp.Where)
    literal = where.find(exp.Literal) if where is not None else None
    if literal is None:
        return None
    literal.set("this", "no such value" if literal.is_string else "3")
    return tree


def drop_where(tree: exp.Expr) -> exp.Expr | None:
    where = tree.find(exp.Where)
    return where and where.pop() and tree


def other_limit(tree: exp.Expr) -> exp.Expr | None:
    limit = tree.find(exp.Limit)
    if limit is not None:
        limit.pop()
        return tree
    return tree.limit(2) if isinstance(tree, exp.Select) else None


def drop_order(tree: exp.Expr) -> exp.Expr | None:
    order = tree.find(exp.Order)
    return order and order.pop() and tree


def reverse_order(tree: exp.Expr) -> exp.Expr | None:
    ordered = tree.find(exp.Ordered)
    if ordered is None:
        return None
    ordered.set("desc", not ordered.args.get("desc"))
    return tree


def order_by_first(tree: exp.Expr) -> exp.Expr | None:
    if not isinstance(tree, exp.Select) or tree.args.get("order"):
        return None
    return tree.order_by("1 DESC")


def left_join(tree: exp.Expr) -> exp.Expr | None:
    join = tree.find(exp.Join)
    if join is None or join.side or not join.args.get("on"):
        return None
    join.set("side", "LEFT")
    return tree


def other_aggregate(tree: exp.Expr) -> exp.Expr | None:
    for old, new in (
        (exp.Max, exp.Min),
        (exp.Avg, exp.Sum),
        (exp.Sum, exp.Avg),
        (exp.Min, exp.Max),
    ):
        found = tree.find(old)
        if found is not None:
            found.replace(new(this=found.this))
            return tree
    return None


def repeated_rows(tree: exp.Expr) -> exp.Expr | None:
    copy = tree.copy()
    if isinstance(tree, exp.Select) and not tree.args.get("order") and not tree.args.get("limit"):
        return exp.union(tree, copy, distinct=False)
    return None


def extra_column(tree: exp.Expr) -> exp.Expr | None:
    return tree.select("1") if isinstance(tree, exp.Select) else None


def fewer_columns(tree: exp.Expr) -> exp.Expr | None:
    select = tree.find(exp.Select)
    if select is None or len(select.expressions) < 2:
        return None
    select.set("expressions", select.expressions[:-1])
    return tree


def as_text(tree: exp.Expr) -> exp.Expr | None:
    """1 and 1.0 are equal, 1 and '1' are not."""
    select = tree.find(exp.Select)
    if select is None or not isinstance(select.expressions[0], exp.Column):
        return None
    select.set("expressions", [select.expressions[0] * 1.0, *select.expressions[1:]])
    return tree


def empty_result(tree: exp.Expr) -> exp.Expr | None:
    return tree.where("1 = 0") if isinstance(tree, exp.Select) else None


def unknown_column(tree: exp.Expr) -> exp.Expr | None:
    return tree.select("no_such_column") if isinstance(tree, exp.Select) else None


MUTATIONS: tuple[Mutation, ...] = (
    reverse_columns,
    drop_distinct,
    add_distinct,
    other_literal,
    drop_where,
    other_limit,
    drop_order,
    reverse_order,
    order_by_first,
    left_join,
    other_aggregate,
    repeated_rows,
    extra_column,
    fewer_columns,
    as_text,
    empty_result,
    unknown_column,
)


MUTATIONS_A_QUESTION = 4


def pairs_of(question: GoldQuestion) -> Iterator[tuple[str, str, str]]:
    """`(kind, predicted, gold)`: the gold itself, and some of the mutations that apply to it.

    Every question begins elsewhere in the list, so that all kinds have their share.
    """
    gold = question.gold[0].strip().rstrip(";")
    yield "gold", gold, gold
    for alternative in question.gold[1:]:
        yield "alternative", alternative.strip().rstrip(";"), gold
    tree = parsed(gold, "sqlite")
    assert tree is not None, gold
    start = question.position % len(MUTATIONS)
    left = MUTATIONS_A_QUESTION
    for mutate in (*MUTATIONS[start:], *MUTATIONS[:start]):
        mutated = mutate(tree.copy()) if left else None
        if mutated is not None:
            left -= 1
            yield mutate.__name__, mutated.sql(dialect="sqlite"), gold


def model_predictions(questions: dict[str, GoldQuestion]) -> Iterator[tuple[str, str, str, str]]:
    for line in Path(PREDICTIONS).read_text().splitlines() if PREDICTIONS else ():
        entry = json.loads(line)
        if entry.get("sql") and entry["id"] in questions:
            question = questions[entry["id"]]
            yield str(question.file), "model", entry["sql"], question.gold[0].strip().rstrip(";")


def official_verdicts(pairs: list[tuple[str, str, str]]) -> list[list[Any]]:
    script = Path(__file__).with_name("official_verdicts.py")
    asked = subprocess.run(
        [sys.executable, str(script), str(ORIGINALS)],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr[-2000:]
    verdicts: list[list[Any]] = json.loads(asked.stdout)
    return verdicts


async def test_every_verdict_is_the_official_one(tmp_path: Path) -> None:
    questions = read_questions(DATA / "questions.jsonl")
    files: dict[str, Path] = {}
    for name in {str(item.file) for item in questions}:
        files[name] = tmp_path / name.replace("/", "-") / Path(name).name
        files[name].parent.mkdir()
        shutil.copy(DATA / name, files[name])
    cases = [(str(item.file), *pair) for item in questions for pair in pairs_of(item)]
    cases += model_predictions({item.id: item for item in questions})
    official = official_verdicts([(str(files[file]), sql, gold) for file, _, sql, gold in cases])
    differing = []
    async with Executor() as executor:
        for (file, kind, sql, gold), theirs in zip(cases, official, strict=True):
            verdict = await judge_statement(executor, f"sqlite:///{files[file]}", sql, [gold])
            ours = [
                verdict.bird_ex,
                pytest.approx(verdict.bird_soft_f1, abs=1e-9),
                verdict.spider_execution,
                verdict.spider_keep_distinct,
            ]
            if ours != theirs:
                differing.append((file, kind, sql, gold, theirs, verdict))
    kinds = Counter(kind for _, kind, _, _ in cases)
    wrong = sum(not verdict[0] for verdict in official)
    print(f"{len(cases)} pairs, {wrong} of them wrong by BIRD: {dict(kinds)}")
    assert len(cases) >= 600
    assert wrong >= 300
    assert not differing, "\n\n".join(str(item) for item in differing[:20])
