"""What is read of a database, and how it is shown within a budget."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.linking import rank_tables
from hexprefect.text2sql.names import quoted, words_of
from hexprefect.text2sql.reflection import literal
from hexprefect.text2sql.rendering import (
    CHARACTERS_A_TOKEN,
    _least_tokens,
    estimated_tokens,
    render_schema,
    render_table,
)
from hexprefect.text2sql.schema import Column, ForeignKey, Schema, Table
from hexprefect.text2sql.value_index import value_index


async def test_tables_views_keys_and_samples_are_read(shop: Database) -> None:
    schema = await shop.schema()
    order = schema.table("ORDER")
    assert order is not None
    assert order.primary_key == ("order_id",)
    assert order.foreign_keys == (ForeignKey(("customer_id",), "customer", ("customer_id",)),)
    city = schema.table("customer")
    assert city is not None
    column = city.column("City")
    assert column is not None
    assert column.samples == ("'London'", "'New York'")
    view = schema.table("big_order")
    assert view is not None
    assert view.is_view


async def test_comments_in_a_sqlite_definition_describe_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "commented.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE trade (kind TEXT /* buy or sell */,\n fee REAL, -- in euro, without tax\n"
        " note TEXT)"
    )
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        trade = (await database.schema()).tables[0]
    assert [column.comment for column in trade.columns] == [
        "buy or sell",
        "in euro, without tax",
        None,
    ]
    assert "-- buy or sell" in render_table(trade, "sqlite", True)


async def test_a_broken_view_hides_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE a (x INTEGER); CREATE TABLE b (y INTEGER);"
        "CREATE VIEW v AS SELECT x FROM a; INSERT INTO b VALUES (1); DROP TABLE a;"
    )
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        assert (await database.schema()).table("b") is not None
        assert (await database.execute("SELECT y FROM b")).rows == ((1,),)


async def test_awkward_names_are_shown_quoted(shop: Database) -> None:
    text = render_schema(await shop.schema(), token_budget=5_000).text
    for part in ('CREATE TABLE "order"', '"Order Date" DATE', '"Größe"', '"select" TEXT'):
        assert part in text
    assert "FOREIGN KEY (customer_id) REFERENCES customer (customer_id)" in text
    assert "MixedCase TEXT" in text


@pytest.mark.parametrize(
    ("name", "dialect", "shown"),
    [
        ("name", "sqlite", "name"),
        ("MixedCase", "sqlite", "MixedCase"),
        ("MixedCase", "postgres", '"MixedCase"'),
        ("order", "sqlite", '"order"'),
        ("order", "postgres", '"order"'),
        ("alter", "sqlite", '"alter"'),
        ("two words", "postgres", '"two words"'),
        ("größe", "sqlite", '"größe"'),
        ('od"d', "sqlite", '"od""d"'),
        ("1st", "postgres", '"1st"'),
    ],
)
def test_names_are_quoted_where_the_dialect_needs_it(name: str, dialect: str, shown: str) -> None:
    assert quoted(name, dialect) == shown


def test_names_are_split_into_words() -> None:
    assert words_of("Song_release_year") == ["song", "release", "year"]
    assert words_of("sbTxDateTime") == ["sb", "tx", "date", "time"]


names = st.text(alphabet="abcdefgh_ ÄÖ\"'", min_size=1, max_size=12)
columns = st.builds(
    Column,
    name=names,
    type=st.sampled_from(["INTEGER", "TEXT"]),
    samples=st.lists(st.text(max_size=30).map(literal), max_size=3).map(tuple),
)
tables = st.lists(
    st.builds(Table, name=names, columns=st.lists(columns, min_size=1, max_size=8).map(tuple)),
    min_size=1,
    max_size=12,
    unique_by=lambda table: table.name.casefold(),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(tables=tables, budget=st.integers(min_value=100, max_value=2_000))
def test_a_rendering_keeps_its_budget_and_names_what_it_leaves_out(
    tables: list[Table], budget: int
) -> None:
    schema = Schema("sqlite", tuple(tables))
    rendered = render_schema(schema, token_budget=budget)
    shown = [table for table in tables if table.full_name not in rendered.omitted_tables]
    assert shown
    assert rendered.text.count("CREATE TABLE") >= len(shown)
    assert len(shown) + len(rendered.omitted_tables) == len(tables)
    if rendered.omitted_tables:
        assert f"{len(rendered.omitted_tables)} less relevant" in rendered.text
    if len(shown) > 1:
        # Eight omitted names at most are listed beyond the budget's reserve of forty tokens.
        assert estimated_tokens(rendered.text) <= budget + 40


@given(st.text(max_size=200))
def test_a_sample_is_one_line_and_one_literal(text: str) -> None:
    shown = literal(text)
    assert len(shown.splitlines()) == 1
    assert shown.startswith("'")
    assert shown.endswith("'")
    assert "'" not in shown[1:-1].replace("''", "")


def test_the_fingerprint_follows_the_structure_only() -> None:
    before = Schema("sqlite", (Table("a", (Column("b", "TEXT", samples=("'1'",)),)),))
    other_rows = Schema("sqlite", (Table("a", (Column("b", "TEXT", samples=("'2'",)),)),))
    other_type = Schema("sqlite", (Table("a", (Column("b", "DATE"),)),))
    assert before.fingerprint == other_rows.fingerprint
    assert before.fingerprint != other_type.fingerprint


def wide_schema() -> Schema:
    fillers = tuple(
        Table(f"filler_{n}", (Column("filler_id", "INTEGER"), Column("remark", "TEXT")))
        for n in range(300)
    )
    return Schema(
        "sqlite",
        (
            *fillers,
            Table("customers", (Column("id", "INTEGER"), Column("full_name", "TEXT"))),
            Table(
                "purchases",
                (Column("customer_id", "INTEGER"), Column("product_id", "INTEGER")),
                foreign_keys=(
                    ForeignKey(("customer_id",), "customers", ("id",)),
                    ForeignKey(("product_id",), "products", ("id",)),
                ),
            ),
            Table("products", (Column("id", "INTEGER"), Column("price", "REAL"))),
        ),
    )


def test_tables_are_ranked_by_words_with_what_joins_them() -> None:
    ranked = rank_tables("price of the product of each customer by full name", wide_schema())
    assert set(ranked[:3]) == {"customers", "products", "purchases"}


def test_linked_tables_come_first() -> None:
    ranked = rank_tables("price of products", wide_schema(), linked=("filler_7",))
    assert ranked[0] == "filler_7"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Which customers live in london?", "London"),
        ("Who lives in New York", "New York"),
        ("Who lives in New Yorck?", "New York"),
        ("Is 'New York' a city", "New York"),
    ],
)
def test_values_are_found_however_they_are_written(question: str, expected: str) -> None:
    column = Column("city", "TEXT", values=("London", "New York", "Oslo"))
    index = value_index(Schema("sqlite", (Table("customer", (column,)),)))
    assert [item.value for item in index.find(question)] == [expected]


def test_a_value_that_the_question_does_not_mention_is_not_offered() -> None:
    column = Column("city", "TEXT", values=("London", "Oslo"))
    index = value_index(Schema("sqlite", (Table("customer", (column,)),)))
    assert index.find("How many customers are there?", phrases=["Oslo"]) == ()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(tables=tables)
def test_the_least_a_table_takes_is_never_more_than_it_takes(tables: list[Table]) -> None:
    """Else a table that would fit is left out."""
    for table in tables:
        for key in ((), (table.columns[0].name,)):
            keyed = replace(
                table,
                primary_key=key,
                foreign_keys=(ForeignKey(key, "other", ("a",)),) if key else (),
            )
            text = render_table(keyed, "sqlite", False)
            assert _least_tokens(keyed) <= len(text) / CHARACTERS_A_TOKEN
