"""Who may read what: allow-lists of schemas, tables and columns, held on every engine."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.access import Access, check_names, restricted, unknown_names
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.guard import check
from hexprefect.text2sql.rendering import render_schema
from hexprefect.text2sql.schema import Column, Example, ForeignKey, Schema, Table, Vocabulary

CANARY = "canary 7f3a"
NAMES_ONLY = Access(columns={"customer": ("customer_id", "name")})


def shop(dialect: str = "sqlite") -> Schema:
    customer = Table(
        "customer",
        (Column("customer_id", "INTEGER"), Column("name", "TEXT"), Column("city", "TEXT")),
        primary_key=("customer_id",),
    )
    order = Table(
        "order",
        (Column("order_id", "INTEGER"), Column("customer_id", "INTEGER")),
        foreign_keys=(ForeignKey(("customer_id",), "customer", ("customer_id",)),),
    )
    salary = Table("salary", (Column("customer_id", "INTEGER"), Column("amount", "INTEGER")))
    paid = Table("paid", (Column("name", "TEXT"),), is_view=True, reads=("customer", "salary"))
    named = Table("named", (Column("name", "TEXT"),), is_view=True, reads=("customer",))
    twice = Table("twice", (Column("name", "TEXT"),), is_view=True, reads=("named",))
    dark = Table("dark", (Column("name", "TEXT"),), is_view=True, reads=None)
    old = Table("customer", (Column("note", "TEXT"),), schema="archive")
    default = None if dialect == "sqlite" else "public"
    return Schema(dialect, (customer, order, salary, paid, named, twice, dark, old), default)


def names(schema: Schema) -> list[str]:
    return [table.full_name for table in schema.tables]


def test_nothing_said_holds_nothing_back() -> None:
    schema = shop()
    assert restricted(schema, Access()) is schema


def test_an_empty_list_of_schemas_leaves_the_default_schema() -> None:
    assert "archive.customer" not in names(restricted(shop(), Access(schemas=())))
    assert names(restricted(shop("postgres"), Access(schemas=("archive",)))) == ["archive.customer"]
    both = restricted(shop("postgres"), Access(schemas=("public", "archive")))
    assert {"customer", "archive.customer"} <= set(names(both))


def test_views_are_looked_through_unless_they_are_named() -> None:
    listed = Access(tables=("customer", "order", "named"))
    assert names(restricted(shop(), listed)) == ["customer", "order", "named"]
    # `paid` reads salary, `twice` reads named, of `dark` nobody knows what it reads.
    all_whole = restricted(shop(), Access(schemas=()))
    assert names(all_whole) == ["customer", "order", "salary", "paid", "named", "twice"]
    without_city = restricted(shop(), NAMES_ONLY)
    assert set(names(without_city)) == {"customer", "order", "salary", "archive.customer"}
    granted = restricted(shop(), replace(NAMES_ONLY, tables=("customer", "paid")))
    assert names(granted) == ["customer", "paid"]


def test_what_is_hidden_takes_the_keys_to_it_along() -> None:
    schema = restricted(shop(), Access(tables=("order",)))
    [order] = schema.tables
    assert order.foreign_keys == ()
    schema = restricted(shop(), Access(columns={"customer": ("name",)}))
    customer = schema.table("customer")
    assert customer is not None
    assert customer.primary_key == ()
    assert customer.hidden_columns == ("customer_id", "city")


def test_two_lists_for_one_table_leave_what_both_allow() -> None:
    for keys in (("customer", "public.customer"), ("public.customer", "customer")):
        lists = zip(keys, (("customer_id", "name"), ("name", "city")), strict=True)
        seen = restricted(shop("postgres"), Access(columns=dict(lists))).table("customer")
        assert seen is not None
        assert [column.name for column in seen.columns] == ["name"]
        assert set(seen.hidden_columns) == {"customer_id", "city"}


def test_restricting_again_only_takes_away() -> None:
    once = restricted(shop(), NAMES_ONLY)
    twice = restricted(once, Access(columns={"customer": ("city", "name")}))
    customer = twice.table("customer")
    assert customer is not None
    assert [column.name for column in customer.columns] == ["name"]
    assert set(customer.hidden_columns) == {"city", "customer_id"}


def test_names_that_the_catalogue_has_not_are_found() -> None:
    access = Access(
        schemas=("nowhere",), tables=("customr",), columns={"customer": ("nam",), "gone": ("a",)}
    )
    found = ("customr", "gone", "customer.nam")
    assert unknown_names(shop("postgres"), access) == ("nowhere", *found)
    assert unknown_names(shop("postgres"), Access(schemas=("public", "archive"))) == ()
    # The schema of a SQLite file has no name that could be wrong.
    assert unknown_names(shop(), replace(access, schemas=("main",))) == found
    assert unknown_names(shop(), NAMES_ONLY) == ()


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (Access(columns={"customers": ("customer_id",)}), r"customers \(near: .*customer\)"),
        (Access(columns={"customer": ("customer_idd",)}), r"customer\.customer_idd"),
        (Access(tables=("custmer",)), "custmer"),
        (Access(columns={"Custumer": ()}, tables=("customer",)), "Custumer"),
    ],
)
async def test_a_misspelt_name_of_an_allow_list_opens_nothing(
    any_shop: Database, caplog: pytest.LogCaptureFixture, access: Access, said: str
) -> None:
    any_shop.access = (access,)
    with pytest.raises(CallerMistake, match=said) as caught:
        await any_shop.execute("SELECT * FROM customer")
    assert "Text2SQLDatabase" in str(caught.value)
    # Whoever keeps the list is told the near names, whoever asks only those that may be read.
    assert "customer" in caplog.text
    with pytest.raises(CallerMistake):
        await any_shop.schema()


async def test_a_tenant_may_name_what_the_block_holds_back(any_shop: Database) -> None:
    any_shop.access = (Access(tables=("customer",)), Access(tables=("customer", "order")))
    assert [table.name for table in (await any_shop.schema()).tables] == ["customer"]


def test_a_near_name_that_may_not_be_read_is_only_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(CallerMistake) as caught:
        check_names(shop(), (Access(tables=("customer", "salery")),))
    assert "salary" not in str(caught.value)
    assert "salary" in caplog.text


def test_two_tables_that_differ_by_case_are_two() -> None:
    lower = Table("secret", (Column("a", "TEXT"),))
    upper = Table("Secret", (Column("b", "TEXT"),))
    schema = restricted(Schema("postgres", (upper, lower), "public"), Access(tables=("secret",)))
    assert names(schema) == ["secret"]
    assert check('SELECT a FROM "Secret"', dialect="postgres", schema=schema).sql == (
        'SELECT a FROM secret AS "Secret"'
    )


@pytest.mark.parametrize("sql", ["SELECT * FROM salary", "SELECT * FROM no_such_table"])
def test_what_is_hidden_and_what_is_not_there_are_refused_alike(sql: str) -> None:
    with pytest.raises(StatementRefused) as caught:
        check(sql, dialect="sqlite", schema=restricted(shop(), Access(tables=("customer",))))
    assert caught.value.rule == "access"
    assert "that may be read" in str(caught.value)
    assert "customer" in str(caught.value)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "duckdb", "mysql"])
@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("SELECT * FROM customer", "SELECT * FROM ({}) AS customer"),
        ("SELECT c.customer_id FROM customer AS c", "SELECT c.customer_id FROM ({}) AS c"),
        (
            "SELECT a.customer_id FROM customer AS a CROSS JOIN customer AS b",
            "SELECT a.customer_id FROM ({}) AS a CROSS JOIN ({}) AS b",
        ),
        (
            "WITH x AS (SELECT * FROM customer) SELECT name FROM x",
            "WITH x AS (SELECT * FROM ({}) AS customer) SELECT name FROM x",
        ),
    ],
)
def test_a_table_with_hidden_columns_is_read_through_a_query(
    dialect: str, sql: str, written: str
) -> None:
    schema = restricted(shop(dialect), NAMES_ONLY)
    part = "SELECT customer_id, name FROM customer"
    assert check(sql, dialect=dialect, schema=schema).sql == written.format(part, part)


def test_a_hidden_column_is_refused_with_those_that_may_be_read() -> None:
    with pytest.raises(StatementRefused) as caught:
        check(
            "SELECT name FROM customer WHERE city = 'Oslo'",
            dialect="sqlite",
            schema=restricted(shop(), NAMES_ONLY),
        )
    assert caught.value.rule == "access"
    assert "customer_id, name" in str(caught.value)
    # An alias of the same name is the statement's own.
    check(
        "SELECT name AS city FROM customer ORDER BY city",
        dialect="sqlite",
        schema=restricted(shop(), NAMES_ONLY),
    )


def test_the_prompt_shows_nothing_of_what_is_hidden() -> None:
    schema = restricted(shop(), replace(NAMES_ONLY, tables=("customer", "order")))
    text = render_schema(schema, token_budget=5_000).text
    assert "salary" not in text
    assert "city" not in text
    assert "name TEXT" in text


async def test_what_is_hidden_is_not_read_on_any_engine(canary_engine: Any) -> None:
    access = Access(tables=("customer", "order"), columns={"customer": ("customer_id", "name")})
    async with await Database.connect(canary_engine.url, access=(access,)) as database:
        rows = await database.execute("SELECT * FROM customer ORDER BY customer_id")
        assert rows.columns == ("customer_id", "name")
        quote = "`" if canary_engine.dialect == "mysql" else '"'
        joined = await database.execute(
            f"SELECT c.name, COUNT(*) FROM customer AS c JOIN {quote}order{quote} AS o "
            "ON c.customer_id = o.customer_id GROUP BY c.name ORDER BY c.name"
        )
        assert joined.rows == (("Ada", 2), ("Grace", 1))
        for sql in (
            "SELECT * FROM secret",
            "SELECT * FROM shown_secret",
            "SELECT * FROM shown_customer",
            "SELECT city FROM customer",
            "SELECT name FROM customer WHERE city LIKE 'canary%'",
        ):
            with pytest.raises(StatementRefused) as caught:
                await database.execute(sql)
            assert caught.value.rule == "access"
        schema = await database.schema()
        assert CANARY not in repr(schema)


async def test_a_view_that_is_granted_shows_what_it_is_made_of(canary_engine: Any) -> None:
    async with await Database.connect(
        canary_engine.url, access=(Access(tables=("shown_customer",)),)
    ) as database:
        assert CANARY in repr((await database.execute("SELECT * FROM shown_customer")).rows)


async def test_the_sources_of_views_are_known_on_every_engine(canary_engine: Any) -> None:
    async with await Database.connect(canary_engine.url) as database:
        schema = await database.schema()
    found = {table.name: table.reads for table in schema.tables if table.is_view}
    assert found["shown_secret"] == ("secret",)
    assert found["shown_customer"] == ("customer",)
    assert found["big_order"] == ("order",)


async def test_every_refusal_is_logged_and_kept(
    any_shop: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="hexprefect.text2sql.audit")
    statement = "SELECT 1; DROP TABLE customer"
    with pytest.raises(StatementRefused):
        await any_shop.execute(statement)
    [refusal] = any_shop.refusals
    assert refusal.rule == "one-statement"
    assert refusal.statement == statement
    assert refusal.remedy
    assert "secret" not in refusal.database
    [record] = [item for item in caplog.records if item.name == "hexprefect.text2sql.audit"]
    assert record.__dict__["refusal"] == refusal.as_record()


async def test_glossary_and_verified_examples_reach_the_prompt(any_shop: Database) -> None:
    vocabulary = Vocabulary(
        glossary=(("churned", "no order\nfor a year"),),
        examples=(
            Example("How many customers?", "SELECT COUNT(*) FROM customer"),
            Example("Who is rich?", "SELECT * FROM no_such_table"),
        ),
    )
    any_shop.vocabulary = vocabulary
    schema = await any_shop.schema()
    text = render_schema(schema, token_budget=5_000).text
    assert "-- churned: no order for a year" in text
    assert "-- SELECT COUNT(*) FROM customer" in text
    # What the guard would refuse is no example.
    assert "no_such_table" not in text
    small = render_schema(schema, token_budget=60)
    assert small.omitted_words == 2


@pytest.mark.parametrize("type_", ["salary", "public.salary", "salary[]", '"salary"', "customer"])
def test_a_table_that_may_not_be_read_cannot_be_found_as_a_type(type_: str) -> None:
    """PostgreSQL has a type for every table: a cast would tell that it is there."""
    schema = restricted(shop("postgres"), NAMES_ONLY)
    for sql in (f"SELECT NULL::{type_}", f"SELECT * FROM jsonb_to_recordset('[]') AS t(a {type_})"):
        with pytest.raises(StatementRefused) as caught:
            check(sql, dialect="postgres", schema=schema)
        assert caught.value.rule == "type"
    check(f"SELECT NULL::{type_}", dialect="postgres", schema=shop("postgres"))


@pytest.mark.parametrize(
    "type_",
    [
        "int", "numeric(10, 2)", "double precision", "varchar(3)", "text[]", "timestamptz", "jsonb",
        "timestamp without time zone", "interval", "bool", "uuid", "date", "char(2)", "citext",
        "tsvector", "pg_catalog.int4", "real", "regconfig",
    ],
)  # fmt: skip
def test_types_of_values_may_be_named_by_everybody(type_: str) -> None:
    schema = restricted(shop("postgres"), NAMES_ONLY)
    check(f"SELECT name::{type_} FROM customer", dialect="postgres", schema=schema)
