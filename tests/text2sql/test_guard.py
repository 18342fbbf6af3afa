"""What the guard refuses, and what it must let through."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.guard import MAX_CHARACTERS, check
from hexprefect.text2sql.schema import Column, Schema, Table

DIALECTS = ["sqlite", "postgres", "duckdb", "mysql"]
DEFAULT_SCHEMAS = {"sqlite": None, "postgres": "public", "duckdb": "main", "mysql": "shop"}


def schema_of(dialect: str) -> Schema:
    columns = (Column("customer_id", "INTEGER"), Column("name", "TEXT"), Column("city", "TEXT"))
    return Schema(
        dialect,
        (
            Table("customer", columns),
            Table("order", (Column("order_id", "INTEGER"), Column("Order Date", "DATE"))),
            Table("customer", columns, schema="archive"),
        ),
        default_schema=DEFAULT_SCHEMAS[dialect],
    )


def hostile_statements(dialect: str) -> list[str]:
    """Statements of a kind that has slipped through somewhere, one a line."""
    folder = Path(__file__).parent / "hostile"
    return [
        line
        for name in ("every", dialect)
        for line in (folder / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    ]


HOSTILE = [(dialect, sql) for dialect in DIALECTS for sql in hostile_statements(dialect)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_there_are_enough_hostile_statements(dialect: str) -> None:
    assert len(set(hostile_statements(dialect))) >= 150


@pytest.mark.parametrize(("dialect", "sql"), HOSTILE)
def test_hostile_statements_are_refused_with_rule_and_remedy(dialect: str, sql: str) -> None:
    with pytest.raises(StatementRefused) as caught:
        check(sql, dialect=dialect, schema=schema_of(dialect))
    assert caught.value.rule
    assert caught.value.remedy


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM customer",
        "select name from customer;",
        "SELECT name FROM customer -- ; DROP TABLE customer",
        "SELECT name /* DELETE FROM customer */ FROM customer",
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
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_honest_statements_pass(dialect: str, sql: str) -> None:
    if dialect == "mysql":
        sql = sql.replace('"', "`")
    check(sql, dialect=dialect, schema=schema_of(dialect))


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("sqlite", "SELECT name FROM customer LIMIT 2 - (SELECT COUNT(*) FROM customer) % 2"),
        ("postgres", "SELECT name FROM customer LIMIT 2 - (SELECT COUNT(*) FROM customer) % 2"),
        ("sqlite", "VALUES (1, 'a'), (2, 'b')"),
        ("postgres", "VALUES (1, 'a'), (2, 'b')"),
        ("duckdb", "VALUES (1, 'a'), (2, 'b')"),
        ("duckdb", "FROM customer"),
        ("duckdb", "FROM customer SELECT name WHERE city = 'x'"),
        ("duckdb", "SELECT * EXCLUDE (city) FROM customer"),
        ("duckdb", "SELECT * REPLACE (UPPER(name) AS name) FROM customer"),
        ("duckdb", "SELECT COLUMNS('n.*') FROM customer"),
        ("duckdb", "SELECT list_transform([1, 2], x -> x + 1), [x + 1 FOR x IN [1, 2]]"),
        ("duckdb", "SELECT {'a': 1}.a, MAP {'k': 1}, [1, 2, 3][1:2]"),
        ("duckdb", "SELECT name, ROW_NUMBER() OVER () AS n FROM customer QUALIFY n < 3"),
        ("duckdb", "SELECT city, COUNT(*) FROM customer GROUP BY ALL ORDER BY ALL"),
        ("duckdb", 'SELECT strftime("Order Date", \'%Y-%m\') FROM "order"'),
        ("duckdb", 'SELECT date_trunc(\'month\', "Order Date"), today() FROM "order"'),
        ("duckdb", "SELECT median(customer_id), quantile_cont(customer_id, 0.9) FROM customer"),
        ("duckdb", "SELECT string_agg(name, ', ' ORDER BY name) FROM customer"),
        ("duckdb", "SELECT arg_max(name, customer_id), any_value(city) FROM customer"),
        ("duckdb", "SELECT regexp_extract(name, '[a-z]+'), name SIMILAR TO 'A.*' FROM customer"),
        ("duckdb", "SELECT unnest([1, 2]), g FROM generate_series(1, 2) AS t(g)"),
        ("duckdb", "SELECT try_cast(name AS INTEGER), name::VARCHAR FROM customer"),
        ("duckdb", "SELECT * FROM customer USING SAMPLE 2"),
        ("duckdb", 'SELECT * FROM customer POSITIONAL JOIN "order"'),
        ("duckdb", "SELECT main.customer.name FROM main.customer"),
        ("mysql", "SELECT DATE_FORMAT(`Order Date`, '%Y-%m'), YEAR(`Order Date`) FROM `order`"),
        ("mysql", "SELECT GROUP_CONCAT(DISTINCT name ORDER BY name SEPARATOR ', ') FROM customer"),
        ("mysql", "SELECT TIMESTAMPDIFF(DAY, `Order Date`, CURDATE()) FROM `order`"),
        (
            "mysql",
            "SELECT `Order Date` + INTERVAL 1 DAY, DATE_ADD(NOW(), INTERVAL 1 HOUR) FROM `order`",
        ),
        ("mysql", "SELECT IF(city IS NULL, 'none', city), IFNULL(city, 'x') FROM customer"),
        ("mysql", "SELECT customer_id DIV 2, customer_id MOD 2, customer_id % 2 FROM customer"),
        ("mysql", "SELECT CAST(customer_id AS CHAR), CAST(name AS SIGNED) FROM customer"),
        ("mysql", "SELECT CONVERT(name USING utf8mb4), CONCAT_WS(',', name, city) FROM customer"),
        ("mysql", "SELECT name REGEXP '^A', name RLIKE 'a', name <=> NULL FROM customer"),
        ("mysql", "SELECT SUBSTRING_INDEX(name, ' ', 1), LOCATE('a', name) FROM customer"),
        ("mysql", "SELECT STR_TO_DATE('2024', '%Y'), UNIX_TIMESTAMP(), FROM_UNIXTIME(0)"),
        ("mysql", "SELECT JSON_EXTRACT('{\"a\": 1}', '$.a'), JSON_OBJECT('a', 1)"),
        ("mysql", 'SELECT "text in double quotes" FROM customer'),
        ("mysql", "SELECT name FROM customer LIMIT 5, 10"),
        ("mysql", "SELECT city, COUNT(*) FROM customer GROUP BY city WITH ROLLUP"),
        ("mysql", "SELECT STRAIGHT_JOIN a.name FROM customer a JOIN customer b USING (city)"),
        ("mysql", "SELECT shop.customer.name FROM shop.customer"),
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
        ("postgres", "SELECT pg_typeof(name)::text, to_tsvector('english', name) FROM customer"),
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
    dialect=st.sampled_from(DIALECTS),
)
def test_no_text_makes_the_guard_fail_in_another_way(text: str, dialect: str) -> None:
    for sql in (text, f"SELECT {text} FROM customer", f"SELECT * FROM customer {text}"):
        try:
            checked = check(sql, dialect=dialect, schema=schema_of(dialect))
        except StatementRefused:
            continue
        assert check(checked.sql, dialect=dialect, schema=schema_of(dialect)).sql == checked.sql


HARMLESS = {
    "postgres": [
        "jsonb_set('{}', '{a}', '1'), jsonb_insert('{}', '{a}', '1'), any_value(1), bit_xor(3)",
        "array_cat(ARRAY[1], ARRAY[2]), array_fill(0, ARRAY[2]), quote_ident('a b'), sinh(0)",
        "upper_inf(int4range(1, 2)), numnode('a & b'::tsquery), parse_ident('a.b'), sha512('x')",
        "(SELECT sum(r.a) FROM jsonb_to_recordset('[{\"a\": 1}]') AS r(a int)), pow(2, 3)",
        "area(box(point(0, 0), point(1, 1))), timezone('UTC', now()) IS NULL, cosh(0), tand(45)",
    ],
    "sqlite": [
        "json_set('{}', '$.a', 1), json_patch('{}', '{}'), json_remove('{}', '$.a')",
        "json_insert('{}', '$.a', 1), json_replace('{}', '$.a', 1)",
    ],
    "duckdb": ["json_normalize('{}'), pg_typeof(1), list_negative_inner_product([1.0], [2.0])"],
    "mysql": ["json_set('{}', '$.a', 1), bit_xor(3), crc32('a')"],
}


async def test_functions_that_only_make_values_may_be_called(any_shop: Database) -> None:
    for functions in HARMLESS[any_shop.dialect]:
        rows = await any_shop.execute(f"SELECT {functions}")
        assert len(rows.rows) == 1


def test_functions_of_newer_releases_may_be_called() -> None:
    schema = schema_of("sqlite")
    check("SELECT json_pretty('{}'), unistr('a')", dialect="sqlite", schema=schema)
