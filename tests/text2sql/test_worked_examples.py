"""The examples that every prompt begins with: they run, and they give nothing away."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlglot

from hexprefect.demo.shop import build_shop
from hexprefect.text2sql.prompting import DIALECT_NAMES, PromptBook, template
from hexprefect.text2sql.rendering import RenderedSchema

LINES = template("worked_examples").template.partition("\n\n")[0].splitlines()[1:]
EXAMPLES = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "shop.sqlite"
    build_shop(path)
    return path


def test_every_example_runs_on_the_demo_shop(demo_file: Path) -> None:
    connection = sqlite3.connect(f"file:{demo_file}?mode=ro", uri=True)
    assert len(EXAMPLES) >= 8
    for question, sql in EXAMPLES:
        assert question.startswith("Question: ")
        connection.execute(sql).fetchall()
    connection.close()


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
@pytest.mark.parametrize("sql", [sql for _, sql in EXAMPLES])
def test_every_example_is_the_same_in_every_dialect(sql: str, dialect: str) -> None:
    # One static text serves all of them.
    tree = sqlglot.parse_one(sql, dialect=dialect)
    assert tree == sqlglot.parse_one(tree.sql(dialect=dialect), dialect=dialect)


def test_they_stand_before_the_schema_and_can_be_left_out() -> None:
    schema = RenderedSchema("CREATE TABLE wanted (n INTEGER);", 10)
    book = PromptBook("sqlite", schema, "Why?", worked_examples=True)
    shown = book.prompt("candidate_generation", "judge", VALUES)
    text = shown.messages[0].content
    assert text.index("Worked examples") < text.index("CREATE TABLE wanted")
    assert "Why?" not in text
    bare = PromptBook("sqlite", schema, "Why?").prompt("candidate_generation", "judge", VALUES)
    assert "Worked examples" not in bare.messages[0].content
    assert bare.prefix[0].key != shown.prefix[0].key
    assert bare.prefix[1] == shown.prefix[1]


VALUES = {"options": "", "letters": ""}
