"""Which names a statement needs, and which a prompt showed."""

from __future__ import annotations

import pytest

from hexprefect.evaluation.gold_names import Names, names_in, names_shown, parsed
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.rendering import render_schema


@pytest.mark.parametrize(
    ("sql", "tables", "columns"),
    [
        ("SELECT count(*) FROM student", {"student"}, set()),
        (
            "SELECT T1.name FROM Student AS T1 JOIN grade AS T2 ON T1.id = T2.student_id",
            {"student", "grade"},
            {"student.name", "student.id", "grade.student_id"},
        ),
        (
            "SELECT name FROM student WHERE id IN (SELECT student_id FROM grade WHERE points > 8)",
            {"student", "grade"},
            {"student.name", "student.id", "grade.student_id", "grade.points"},
        ),
        (
            "SELECT name FROM student WHERE EXISTS (SELECT 1 FROM grade WHERE student_id = id)",
            {"student", "grade"},
            {"student.name", "student.id", "grade.student_id"},
        ),
        (
            "WITH best AS (SELECT max(points) AS top FROM grade) SELECT top FROM best",
            {"grade"},
            {"grade.points"},
        ),
    ],
)
async def test_a_column_belongs_to_the_nearest_table_that_has_it(
    school_url: str, sql: str, tables: set[str], columns: set[str]
) -> None:
    async with await Database.connect(school_url) as database:
        schema = await database.schema()
    tree = parsed(sql, "sqlite")
    assert tree is not None
    assert names_in(tree, schema) == Names(frozenset(tables), frozenset(columns))


async def test_what_the_prompt_defines_is_shown(school_url: str) -> None:
    async with await Database.connect(school_url) as database:
        schema = await database.schema()
    shown = names_shown(f"You write SQL.\n{render_schema(schema, token_budget=2000).text}")
    assert shown is not None
    assert shown.tables == {"student", "grade"}
    every = {f"{table.name}.{column.name}" for table in schema.tables for column in table.columns}
    assert shown.columns == every
    assert names_shown("You write SQL.") is None


def test_recall_is_the_share_of_what_is_needed() -> None:
    needed = Names(frozenset({"a", "b"}), frozenset({"a.x"}))
    assert needed.recall(Names(frozenset({"a", "c"}), frozenset())) == (0.5, 0.0)
    assert Names(frozenset(), frozenset()).recall(needed) == (1.0, 1.0)


def test_what_is_no_statement_has_no_tree() -> None:
    assert parsed("SELECT FROM WHERE (", "sqlite") is None
    assert parsed("SELECT 1; SELECT 2", "sqlite") is None
