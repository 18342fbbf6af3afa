"""What the guard refuses, and what it must let through."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.guard import MAX_CHARACTERS, check
from hexprefect.text2sql.schema import Column, Schema, Table


def schema_of(dialect: str) -> Schema:
    columns = (Column("customer_id", "INTEGER"), Column("name", "TEXT"), Column("city", "TEXT"))
    return Schema(
        dialect,
        (
            Table("customer", columns),
            Table("order", (Column("order_id", "INTEGER"), Column("Order Date", "DATE"))),
            Table("customer", columns, schema="archive"),
        ),
        default_schema=None if dialect == "sqlite" else "public",
    )


def hostile_statements(dialect: str) -> list[str]:
    """Statements of a kind that has slipped through somewhere, one a line."""
    folder = Path(__file__).parent / "hostile"
    return [
        line
        for name in ("both", dialect)
        for line in (folder / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    ]


HOSTILE = [
    (dialect, sql) for dialect in ("sqlite", "postgres") for sql in hostile_statements(dialect)
]


def test_there_are_enough_hostile_statements() -> None:
    assert len({sql for _, sql in HOSTILE}) >= 150


@pytest.mark.parametrize(("dialect", "sql"), HOSTILE)
def test_hostile_statements_are_refused_with_rule_and_remedy(dialect: str, sql: str) -> None:
    with pytest.raises(StatementRefused) as caught:
        check(sql, dialect=dialect, schema=schema_of(dialect))
    assert caught.value.rule
    assert caught.value.remedy


def digests(folder: Path) -> dict[str, str]:
    return {item.name: hashlib.sha256(item.read_bytes()).hexdigest() for item in folder.iterdir()}


async def test_the_sqlite_wall_alone_keeps_the_file_unchanged(
    shop: Database, tmp_path: Path
) -> None:
    """The guard is bypassed: the authorizer and the read-only file must do."""
    before = digests(tmp_path)
    ran = []
    for sql in hostile_statements("sqlite"):
        try:
            await shop._run(sql)
        except StatementFailed:
            continue
        ran.append(sql)
    # SQLite only describes what EXPLAIN explains; the guard refuses it as no answer to a question.
    assert [sql for sql in ran if not sql.startswith("EXPLAIN")] == []
    assert digests(tmp_path) == before
    assert (await shop.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM customer",
        "select name from customer;",
        "SELECT name FROM customer -- ; DROP TABLE customer",
        "SELECT name /* DELETE FROM customer */ FROM customer",
        "VALUES (1, 'a'), (2, 'b')",
        "SELECT 1 UNION ALL SELECT 2",
        "SELECT name FROM customer EXCEPT SELECT name FROM customer WHERE city = 'x'",
        "WITH numbers(n, m) AS (SELECT 1, 2) SELECT n + m FROM numbers",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) "
        "SELECT i FROM n",
        'SELECT name AS "update" FROM customer',
        "SELECT u.name FROM customer AS u",
        "SELECT 'DROP TABLE customer; --' AS text_with_keywords",
        "SELECT name FROM customer WHERE name LIKE '%delete from%'",
        "SELECT name FROM customer WHERE name = 'O''Hara; COMMIT'",
        "SELECT COUNT(*), city FROM customer GROUP BY city HAVING COUNT(*) > 1 ORDER BY 1 DESC",
        "SELECT name, ROW_NUMBER() OVER (PARTITION BY city ORDER BY name) FROM customer",
        "SELECT CASE WHEN city IS NULL THEN 'none' ELSE city END FROM customer",
        'SELECT "Order Date" FROM "order"',
        "SELECT COALESCE(city, 'x') || '-' || UPPER(name) FROM customer LIMIT 5 OFFSET 1",
        "SELECT name FROM customer WHERE customer_id IN (SELECT customer_id FROM customer)",
        "SELECT REPLACE(name, 'a', 'b') FROM customer",
        "SELECT a.name FROM customer a CROSS JOIN customer b",
        "SELECT name FROM customer LIMIT 2 - (SELECT COUNT(*) FROM customer) % 2",
    ],
)
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_honest_statements_pass(dialect: str, sql: str) -> None:
    check(sql, dialect=dialect, schema=schema_of(dialect))


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("sqlite", "SELECT name AS update_ , 1 AS 'update' FROM customer"),
        ("postgres", "SELECT name AS update FROM customer"),
        ("postgres", "SELECT update.name FROM customer AS update"),
        ("sqlite", 'SELECT strftime(\'%Y\', "Order Date") FROM "order"'),
        ("sqlite", "SELECT GROUP_CONCAT(name, ', ') FROM customer"),
        ("sqlite", "SELECT name IN customer FROM customer"),
        ("sqlite", "WITH a AS (SELECT 1 AS n) SELECT 1 IN a"),
        ("sqlite", "SELECT [name] FROM [customer]"),
        ("sqlite", "SELECT `name` FROM `customer`"),
        ("sqlite", "SELECT name FROM main.customer"),
        ("sqlite", "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a"),
        ("postgres", "SELECT name FROM public.customer"),
        ("postgres", "SELECT name FROM archive.customer"),
        ("postgres", 'SELECT DATE_TRUNC(\'month\', "Order Date") FROM "order"'),
        ("postgres", "SELECT name FROM customer WHERE name ILIKE '%a%'"),
        ("postgres", "SELECT DISTINCT ON (city) city, name FROM customer ORDER BY city, name"),
        ("postgres", "SELECT COUNT(*) FILTER (WHERE city IS NULL) FROM customer"),
        ("postgres", "SELECT g FROM generate_series(1, 3) AS g"),
        ("postgres", "SELECT * FROM customer c, LATERAL (SELECT c.name) AS l"),
        (
            "postgres",
            "SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY customer_id) FROM customer",
        ),
        ("postgres", "SELECT name::text, '1 day'::interval FROM customer"),
        ("postgres", "SELECT pg_catalog.upper(name) FROM customer"),
    ],
)
def test_honest_statements_of_one_dialect_pass(dialect: str, sql: str) -> None:
    check(sql, dialect=dialect, schema=schema_of(dialect))


def test_what_runs_is_regenerated_without_comments() -> None:
    checked = check(
        "select /* hidden */ name from customer; -- tail", dialect="sqlite", schema=None
    )
    assert checked.sql == "SELECT name FROM customer"


def test_a_refusal_names_near_tables_that_would_pass() -> None:
    with pytest.raises(StatementRefused, match="customer"):
        check("SELECT 1 FROM custommer", dialect="sqlite", schema=schema_of("sqlite"))


@pytest.mark.parametrize(
    ("sql", "regenerated"),
    [
        ("SELECT c.NAME FROM Customer AS c", 'SELECT c."name" FROM customer AS c'),
        ("SELECT c.DATE FROM customer AS c", 'SELECT c."date" FROM customer AS c'),
        ("SELECT c.kind FROM customer AS c", 'SELECT c."Kind" FROM customer AS c'),
        ('SELECT c."Kind" FROM customer AS c', 'SELECT c."Kind" FROM customer AS c'),
    ],
)
def test_postgresql_names_get_the_spelling_of_the_catalogue(sql: str, regenerated: str) -> None:
    columns = (Column("name", "TEXT"), Column("date", "DATE"), Column("Kind", "TEXT"))
    schema = Schema("postgres", (Table("customer", columns),), "public")
    assert check(sql, dialect="postgres", schema=schema).sql == regenerated


def test_reserved_names_are_quoted_from_the_catalogue() -> None:
    table = Table("sänger", (Column("order", "INTEGER"),))
    checked = check(
        "SELECT s.order FROM sänger AS s", dialect="sqlite", schema=Schema("sqlite", (table,))
    )
    assert checked.sql == 'SELECT s."order" FROM "sänger" AS s'


async def test_an_alias_called_like_a_keyword_runs(shop: Database, postgres_shop: Database) -> None:
    for database in (shop, postgres_shop):
        rows = await database.execute(
            "SELECT COUNT(*) AS update FROM customer AS select_ ORDER BY update"
        )
        assert (rows.columns, rows.rows) == (("update",), ((3,),))


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("", "one-statement"),
        ("-- nothing", "one-statement"),
        ("SELECT \x00", "characters"),
        ("SELECT " + "1," * MAX_CHARACTERS + "1", "length"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "nesting"),
        ("SELECT 'unclosed", "syntax"),
        ("SELECT ?", "no-parameters"),
        ("SELECT @name", "no-parameters"),
        ("SELECT :name", "no-parameters"),
    ],
)
def test_malformed_statements_are_refused_by_their_own_rule(sql: str, rule: str) -> None:
    with pytest.raises(StatementRefused) as caught:
        check(sql, dialect="sqlite")
    assert caught.value.rule == rule


@given(
    text=st.text(alphabet="SELCTFROMselctfrom customer;'\"`-/*()[]=,1\n\\$@:#", max_size=60),
    dialect=st.sampled_from(["sqlite", "postgres"]),
)
def test_no_text_makes_the_guard_fail_in_another_way(text: str, dialect: str) -> None:
    for sql in (text, f"SELECT {text} FROM customer", f"SELECT * FROM customer {text}"):
        try:
            checked = check(sql, dialect=dialect, schema=schema_of(dialect))
        except StatementRefused:
            continue
        assert check(checked.sql, dialect=dialect, schema=schema_of(dialect)).sql == checked.sql
