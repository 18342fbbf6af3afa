"""What a correcting model is told about a column that stands under the wrong table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.correction import describe
from hexprefect.text2sql.diagnosis import diagnose, misplaced_columns
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.key_graph import join_path
from hexprefect.text2sql.schema import Column, ForeignKey, Schema, Table
from tests.text2sql.conftest import GoldQuestion


def table(name: str, *columns: str, **keys: str) -> Table:
    """A table whose first column is its key; `keys` maps columns to the tables they refer to."""
    return Table(
        name,
        tuple(Column(column, "INTEGER") for column in columns),
        primary_key=columns[:1],
        foreign_keys=tuple(
            ForeignKey((column,), target, ("id",)) for column, target in keys.items()
        ),
    )


SHOP = Schema(
    "sqlite",
    (
        table("customer", "id", "name"),
        table("order", "id", "customer_id", "placed_on", customer_id="customer"),
        table("line", "id", "order_id", "product_id", order_id="order", product_id="product"),
        table("product", "id", "title"),
        table("island", "id", "palm"),
    ),
)


def test_a_column_of_another_table_is_named_with_the_keys_that_lead_there() -> None:
    said = diagnose('SELECT o.id, o.title FROM "order" AS o', SHOP)
    assert said.splitlines() == [
        'o is "order", which has no column title; it has id, customer_id, placed_on.',
        'title is a column of product; it is reached by line.order_id = "order".id and '
        "line.product_id = product.id.",
    ]


def test_a_name_that_no_table_has_comes_with_near_ones() -> None:
    said = diagnose("SELECT nane FROM customer", SHOP)
    assert "customer has no column nane" in said
    assert "customer.name" in said


def test_a_table_that_no_key_reaches_is_named_without_a_way() -> None:
    assert diagnose("SELECT palm FROM customer", SHOP).endswith("palm is a column of island.")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT c.name FROM customer AS c",
        "SELECT NAME FROM CUSTOMER",
        "SELECT C.name FROM customer AS c",
        "SELECT rowid FROM customer",
        "SELECT COUNT(*) AS many FROM customer ORDER BY many",
        'SELECT name FROM customer WHERE name = "Ada"',
        'SELECT name FROM customer WHERE id NOT IN (SELECT customer_id FROM "order")',
        "SELECT name FROM customer AS c WHERE EXISTS "
        '(SELECT 1 FROM "order" WHERE customer_id = c.id)',
        "SELECT t.total FROM (SELECT COUNT(*) AS total FROM customer) AS t",
        "WITH t (total) AS (SELECT COUNT(*) FROM customer) SELECT total FROM t",
        "SELECT name FROM customer UNION SELECT title FROM product",
        "SELECT nonsense FROM nowhere",
        "SELECT (((",
        "",
    ],
)
def test_what_is_in_its_place_or_beyond_us_is_left_alone(sql: str) -> None:
    assert misplaced_columns(sql, SHOP) == ()


@given(st.text(max_size=60))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    diagnose(text, SHOP)
    diagnose(f"SELECT {text} FROM customer", SHOP)


@given(st.data())
def test_a_path_of_keys_is_a_chain_from_start_to_goal(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 8))
    tables = tuple(
        table(
            f"t{number}",
            "id",
            "up",
            **({"up": f"t{data.draw(st.integers(0, number - 1))}"} if number else {}),
        )
        for number in range(count)
    )
    schema = Schema("sqlite", tables)
    start, goal = data.draw(st.sampled_from(tables)), data.draw(st.sampled_from(tables))
    reached = {start.name}
    path = join_path((start,), goal, schema)
    for condition in path:
        ends = {side.split(".")[0] for side in condition.split(" = ")}
        assert len(ends & reached) == 1
        reached |= ends
    assert goal.name in reached or not path
    assert (start is goal) <= (path == ())


def test_the_engines_error_carries_the_diagnosis() -> None:
    sql = "SELECT title FROM customer"
    said = describe(StatementFailed("no such column: title"), SHOP, sql=sql)
    assert said.startswith("It failed: no such column: title\n")
    assert "title is a column of product; it is reached by" in said


def test_no_gold_statement_is_called_misplaced(gold_questions: list[GoldQuestion]) -> None:
    wrongly = [item.id for item in gold_questions if misplaced_columns(item.sql, item.schema)]
    assert wrongly == []
