"""One statement against its gold: verdicts, and the cause when one is wrong."""

from __future__ import annotations

import decimal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.execution import ExecutionLimits, Executor, plain_rows
from hexprefect.evaluation.verdicts import judge_statement
from hexprefect.text2sql.rows import Rows

NAMES = "SELECT name FROM student"


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    async with Executor(ExecutionLimits(timeout_s=20)) as opened:
        yield opened


class TestMeasures:
    async def test_the_gold_is_right_by_every_measure(
        self, executor: Executor, school_url: str
    ) -> None:
        verdict = await judge_statement(executor, school_url, NAMES, [NAMES])
        assert verdict.bird_ex
        assert verdict.spider_execution
        assert verdict.spider_keep_distinct
        assert verdict.bird_soft_f1 == 1
        assert verdict.cause == "right"

    async def test_spider_forgives_distinct_and_bird_never_sees_it(
        self, executor: Executor, school_url: str
    ) -> None:
        verdict = await judge_statement(
            executor, school_url, "SELECT age FROM student", ["SELECT DISTINCT age FROM student"]
        )
        assert verdict.bird_ex
        assert verdict.spider_execution
        assert not verdict.spider_keep_distinct
        assert verdict.cause == "repeated rows"

    async def test_any_alternative_will_do_and_the_best_score_counts(
        self, executor: Executor, school_url: str
    ) -> None:
        gold = ["SELECT name FROM student WHERE id = 1", "SELECT name, age FROM student"]
        verdict = await judge_statement(executor, school_url, "SELECT name, age FROM student", gold)
        assert verdict.bird_ex
        assert verdict.spider_keep_distinct
        assert verdict.bird_soft_f1 == 1

    async def test_what_a_tokenizer_took_apart_runs_for_spider_only(
        self, executor: Executor, school_url: str
    ) -> None:
        gold = "SELECT name FROM student WHERE age >= 13"
        verdict = await judge_statement(executor, school_url, gold.replace(">=", "> ="), [gold])
        assert verdict.spider_execution
        assert not verdict.bird_ex


@pytest.mark.parametrize(
    ("sql", "gold", "cause"),
    [
        (None, NAMES, "no statement"),
        ("  ", NAMES, "no statement"),
        ("DELETE FROM student", NAMES, "refused by the guard"),
        ("SELECT name FROM pupil", NAMES, "unknown table"),
        ("SELECT nick FROM student", NAMES, "unknown column"),
        ("SELECT name FROM student WHERE", NAMES, "syntax error"),
        ("SELECT name, age FROM student", NAMES, "extra columns"),
        ("SELECT age, name, id FROM student", "SELECT name, age FROM student", "extra columns"),
        (NAMES, "SELECT name, age FROM student", "missing columns"),
        ("SELECT age, name FROM student", "SELECT name, age FROM student", "other column order"),
        (f"{NAMES} ORDER BY name DESC", f"{NAMES} ORDER BY name", "other row order"),
        ("SELECT subject FROM grade WHERE points > 8.5", NAMES, "wrong tables"),
        ("SELECT max(age) FROM student", "SELECT min(age) FROM student",
         "wrong aggregation or grouping"),
        ("SELECT home FROM student", NAMES, "wrong columns"),
        (f"{NAMES} WHERE age = 13", f"{NAMES} WHERE age = 14", "wrong values"),
        (f"{NAMES} WHERE age = 13", f"{NAMES} WHERE id = 13 - 12", "wrong conditions"),
        (f"{NAMES} ORDER BY age LIMIT 1", f"{NAMES} ORDER BY age DESC LIMIT 1",
         "wrong order or limit"),
        (
            "SELECT s.name, g.points FROM student s LEFT JOIN grade g ON g.student_id = s.id",
            "SELECT s.name, g.points FROM student s JOIN grade g ON g.student_id = s.id",
            "wrong joins",
        ),
    ],
)  # fmt: skip
async def test_the_cause_is_the_first_thing_that_differs(
    executor: Executor, school_url: str, sql: str | None, gold: str, cause: str
) -> None:
    verdict = await judge_statement(executor, school_url, sql, [gold])
    assert verdict.cause == cause
    assert not (verdict.bird_ex and verdict.spider_keep_distinct)


async def test_aliases_case_and_sides_of_an_equation_are_no_difference(
    executor: Executor, school_url: str
) -> None:
    """So what remains, the value, is the cause."""
    verdict = await judge_statement(
        executor,
        school_url,
        "SELECT x.NAME AS n FROM Student AS x JOIN grade ON x.id = student_id WHERE points = 7",
        ["SELECT name FROM student s JOIN grade g ON g.student_id = s.id WHERE 8 = g.points"],
    )
    assert verdict.cause == "wrong values"


class TestLimits:
    async def test_a_statement_that_takes_too_long_is_stopped(self, school_url: str) -> None:
        endless = (
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
        )
        async with Executor(ExecutionLimits(timeout_s=0.2)) as executor:
            verdict = await judge_statement(executor, school_url, endless, [NAMES])
        assert verdict.cause == "timeout"

    async def test_a_result_over_the_cap_is_not_compared_by_its_first_rows(
        self, school_url: str
    ) -> None:
        cross = "SELECT a.name FROM student a, student b"
        async with Executor(ExecutionLimits(max_rows=15)) as executor:
            verdict = await judge_statement(executor, school_url, cross, [NAMES])
            assert verdict.cause == "result too large"
            assert not verdict.bird_ex, "the set of its first rows is the gold's"
            swapped = await judge_statement(executor, school_url, NAMES, [cross])
            assert not swapped.is_judged
        async with Executor(ExecutionLimits(max_rows=16)) as executor:
            exact = await judge_statement(executor, school_url, cross, [NAMES])
            assert exact.bird_ex

    @pytest.mark.parametrize("sql", [NAMES, None, "  ", "SELECT nick FROM pupil"])
    async def test_a_gold_that_fails_says_nothing_of_the_prediction(
        self, executor: Executor, school_url: str, sql: str | None
    ) -> None:
        verdict = await judge_statement(executor, school_url, sql, ["SELECT nick FROM student"])
        assert verdict.cause == "gold failed"
        assert not verdict.is_judged
        assert "nick" in (verdict.problem or "")

    async def test_gold_may_use_what_the_guard_does_not_know_but_not_write(
        self, executor: Executor, school_url: str
    ) -> None:
        known = await executor.gold(school_url, "SELECT sqlite_version() IS NOT NULL")
        assert known.rows == ((1,),)
        written = await executor.gold(school_url, "DELETE FROM student")
        assert written.trouble == "error"
        assert (await executor.gold(school_url, "SELECT count(*) FROM student")).rows == ((4,),)

    async def test_a_gold_is_run_once(self, school: Path, school_url: str) -> None:
        async with Executor() as executor:
            before = await executor.gold(school_url, "SELECT count(*) FROM student")
            connection = sqlite3.connect(school / "school" / "school.sqlite")
            connection.execute("DELETE FROM student WHERE id = 4")
            connection.commit()
            connection.close()
            assert await executor.gold(school_url, "SELECT count(*) FROM student") == before
            fresh = await executor.predicted(school_url, "SELECT count(*) FROM student")
            assert fresh.rows == ((3,),)

    async def test_a_database_that_is_not_there_ends_the_run(self, tmp_path: Path) -> None:
        async with Executor() as executor:
            with pytest.raises(CallerMistake, match="does not exist"):
                await judge_statement(executor, f"sqlite:///{tmp_path / 'no'}", NAMES, [NAMES])


def test_rows_are_compared_by_their_values_and_not_by_their_encoding() -> None:
    rows = Rows(
        columns=("a", "b", "c", "d"),
        types=("bytes", "decimal", "mixed", "json"),
        rows=(("YQ==", "1.10", {"type": "bytes", "value": "YQ=="}, {"k": [1]}),),
    )
    [row] = plain_rows(rows)
    assert row == (b"a", decimal.Decimal("1.1"), b"a", '{"k": [1]}')
    assert {row}, "a row can be an element of a set"


def test_no_number_is_the_same_wherever_it_stands() -> None:
    rows = Rows(
        columns=("a", "b", "c"),
        types=("number", "decimal", "mixed"),
        rows=(("NaN", "NaN", {"type": "number", "value": "NaN"}),) * 2,
    )
    assert set(plain_rows(rows)) == set(plain_rows(rows))
    assert len(set(plain_rows(rows))) == 1
