"""SQL is found in whatever a model wraps it in, once."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.errors import ExtractionFailed
from hexprefect.text2sql.extraction import extract_sql, without_thoughts

SQL = "SELECT name FROM customer"


@pytest.mark.parametrize(
    "text",
    [
        SQL,
        f"{SQL};",
        f"{SQL} ; \n",
        f"```sql\n{SQL}\n```",
        f"```sql\n{SQL};\n```",
        f"```\n{SQL}\n```",
        f"```SQLite\n{SQL}\n```",
        f"```postgresql {SQL}```".replace("postgresql ", "postgresql\n"),
        f"Sure! Here is the query:\n\n```sql\n{SQL}\n```\n\nIt selects the names.",
        f"Here is the query:\n{SQL};\nIt selects the names of all customers.",
        f"The answer is: {SQL};",
        f"{SQL}\n\nThis query selects the name.",
        f"```sql\n{SQL}",
        f"<think>Maybe SELECT 1?</think>\n{SQL}",
        f"Maybe ```sql\nSELECT 1\n``` no.</think>```sql\n{SQL}\n```",
        f"<think>a</think> SELECT 2 <think>b</think>\n```sql\n{SQL}\n```",
        f"<thinking>\nSELECT 3\n</thinking>\n{SQL}",
        f"First try:\n```sql\nSELECT 1\n```\nBetter:\n```sql\n{SQL}\n```",
        f"```sql\n{SQL}\n```\nIn Python:\n```python\nprint('SELECT 9')\n```",
        f"```python\nprint(1)\n```\n```\n{SQL}\n```",
        f"~~~sql\n{SQL}\n~~~",
        f"Plan:\n- output: name\n- table: customer\n```sql\n{SQL}\n```",
        f"-- the names\n{SQL}",
        f"```sql\n-- Select the names.\n{SQL}\n```",
        f"```sql\n/*\nSelect the names\nwith nothing else\n*/\n{SQL};\n```",
        f"Select the names of all:\n\n{SQL};",
        f"With this in mind, the query is:\n{SQL};",
        f"You can select the names by {SQL};",
        f"Use `{SQL}`. It reads `customer` only.",
        f"Use ```sql {SQL}``` to see all names.\nThey are many.",
        f"{SQL}\n\nExplanation: it selects the names.",
        f"<think >Maybe SELECT 1?</think >\n{SQL}",
        f"<think effort='low'>SELECT 1</think>{SQL}",
        f"<reasoning>SELECT 1</reasoning>{SQL}",
        f"[THINK]SELECT 1[/THINK]{SQL}",
    ],
)
def test_the_statement_is_found(text: str) -> None:
    assert extract_sql(text) == SQL


def test_a_semicolon_in_a_literal_ends_nothing() -> None:
    sql = "SELECT name FROM customer WHERE name = 'a;b'"
    assert extract_sql(f"{sql}; Done.") == sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT `name` FROM `customer`",
        "((SELECT 1) UNION (SELECT 2))",
        "(\n  SELECT 1\n) UNION (SELECT 2)",
        "SELECT name -- the customer's; all of them.\nFROM (\nSELECT name FROM customer) AS c",
        "SELECT 1 /* it's ; */ FROM customer",
        "SELECT name FROM customer WHERE name = 'a\n\nThis is ; all'",
        "SELECT $$a;b$$ FROM customer",
        "SELECT list[1], ['a;b'] FROM customer",
        'SELECT "odd;name" FROM [odd;table]',
    ],
)
def test_a_statement_is_kept_whole(sql: str) -> None:
    assert extract_sql(f"```sql\n{sql}\n```") == sql
    assert extract_sql(f"{sql};\nIt's what you wanted.") == sql


def test_a_common_table_expression_is_kept_whole() -> None:
    sql = "WITH a(n) AS (\n  SELECT 1\n)\n\nSELECT n FROM a"
    assert extract_sql(f"```sql\n{sql};\n```") == sql
    assert extract_sql(f"Here it is:\n{sql};") == sql


def test_a_second_statement_is_left_for_the_guard_to_refuse() -> None:
    assert "DROP" in extract_sql("```sql\nSELECT 1; DROP TABLE customer\n```")


@pytest.mark.parametrize(
    "text", ["", "I cannot answer that.", "<think>SELECT 1", "```sql\n```", "DROP TABLE customer"]
)
def test_no_query_is_an_error_that_shows_the_answer(text: str) -> None:
    with pytest.raises(ExtractionFailed):
        extract_sql(text)


@given(before=st.text(max_size=40), after=st.text(max_size=40))
def test_whatever_stands_before_the_last_thought_end_is_gone(before: str, after: str) -> None:
    cut = without_thoughts(f"{before}</think>{after}")
    assert cut in after


@given(st.text(max_size=200))
def test_any_text_gives_a_statement_or_an_error(text: str) -> None:
    with contextlib.suppress(ExtractionFailed):
        assert extract_sql(text).strip()
