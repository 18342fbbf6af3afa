"""On PostgreSQL a name behind a dot that is no column calls a function: no such call passes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from hexprefect.text2sql.access import Access
from hexprefect.text2sql.correction import unknown_name
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.guard import check
from hexprefect.text2sql.schema import Column, Schema, Table

CANARY = "canary 51c0"
SETUP = f"""
CREATE SCHEMA peeking;
SET search_path = peeking, public;
CREATE TABLE vault (note TEXT);
INSERT INTO vault VALUES ('{CANARY}');
CREATE TABLE visit (visit_id INTEGER, place TEXT, tags TEXT[]);
INSERT INTO visit VALUES (1, 'Oslo', '{{a,b}}'), (2, 'Rome', NULL);
CREATE TABLE peekable (peek TEXT);
CREATE FUNCTION public.peek(anyelement) RETURNS TEXT LANGUAGE sql STABLE SECURITY DEFINER
    AS 'SELECT note FROM peeking.vault';
GRANT USAGE ON SCHEMA peeking TO reader;
GRANT SELECT ON visit, peekable TO reader;
"""


@pytest.fixture(scope="module")
def reader_url(postgres_server: str) -> Iterator[str]:
    """Of a role that may call `peek`, which tells it what it may not read."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(SETUP.encode())
    yield postgres_server.replace("postgres:@", "reader:@", 1)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"DROP FUNCTION public.peek; DROP SCHEMA peeking CASCADE")


CALLS = [
    "SELECT peek(v) FROM peeking.visit AS v",
    "SELECT v.peek FROM peeking.visit AS v",
    "SELECT visit.peek FROM peeking.visit",
    "SELECT peeking.visit.peek FROM peeking.visit",
    "SELECT (v).peek FROM peeking.visit AS v",
    "SELECT ((v)).peek FROM peeking.visit AS v",
    "SELECT (v.place).peek FROM peeking.visit AS v",
    "SELECT v.tags[1].peek FROM peeking.visit AS v",
    "SELECT (v.tags)[1].peek FROM peeking.visit AS v",
    "SELECT (ARRAY(SELECT v FROM peeking.visit AS v))[1].peek",
    "SELECT (SELECT v FROM peeking.visit AS v LIMIT 1).peek",
    "SELECT ROW(v.visit_id).peek, (ROW(1)).peek FROM peeking.visit AS v",
    "SELECT (max(v.place)).peek FROM peeking.visit AS v",
    'SELECT v.PEEK, v."peek" FROM peeking.visit AS v',
    "SELECT place FROM peeking.visit AS v ORDER BY v.peek",
    "SELECT place FROM peeking.visit AS v GROUP BY place, v.peek",
    "SELECT place FROM peeking.visit AS v WHERE v.peek LIKE 'c%'",
    "SELECT count(*) FROM peeking.visit AS v JOIN peeking.visit AS w ON v.peek = w.peek",
    "SELECT s.peek FROM (SELECT v FROM peeking.visit AS v) AS s",
    "SELECT s.v.peek FROM (SELECT v FROM peeking.visit AS v) AS s",
    "SELECT (s.v).peek FROM (SELECT v FROM peeking.visit AS v) AS s",
    "SELECT s.peek FROM (SELECT v.peek FROM peeking.visit AS v) AS s",
    "WITH s AS (SELECT 1 AS one) SELECT s.peek FROM s",
    "WITH s AS (SELECT 1 AS one), t AS (SELECT s.peek FROM s) SELECT t.peek FROM t",
    "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 2) "
    "SELECT s.peek FROM s",
    "SELECT v.place FROM peeking.visit AS v, LATERAL (SELECT v.peek) AS s(x)",
    "SELECT peek.peek FROM generate_series(1, 1) AS peek(n)",
    "SELECT peek.peek FROM jsonb_array_elements('[1]') AS peek",
    "SELECT peek.peek FROM unnest(ARRAY[ROW(1)]) AS peek",
    "SELECT peek.peek FROM unnest((SELECT ARRAY[v] FROM peeking.visit AS v LIMIT 1)) AS peek",
    "SELECT peek.peek FROM coalesce(ROW(1)) AS peek",
    "SELECT peek.peek FROM (VALUES (1)) AS peek",
    "SELECT j.peek FROM (peeking.visit AS a JOIN peeking.visit AS b ON TRUE) AS j",
    "SELECT 1 FROM peeking.visit AS peek JOIN LATERAL (SELECT (peek).peek) AS s ON TRUE",
    # Only what the name means there counts: not what it means further out, or further in.
    "SELECT place FROM peeking.visit AS v WHERE EXISTS "
    "(SELECT v.peek FROM peeking.visit AS v, peeking.peekable AS w)",
    "SELECT 1 FROM peeking.visit AS v WHERE EXISTS (SELECT 1 FROM peeking.peekable AS v, "
    "(SELECT v.peek) AS s(x))",
    "SELECT 1 FROM peeking.visit AS v WHERE EXISTS (SELECT 1 FROM peeking.peekable AS v, "
    "peeking.visit AS a JOIN peeking.visit AS b ON v.peek IS NOT NULL)",
    "SELECT v.peek FROM (peeking.peekable AS v JOIN peeking.visit AS w ON TRUE) AS j, "
    "peeking.visit AS v",
    "SELECT 1 FROM peeking.peekable AS v WHERE 'x' = "
    "((SELECT v.place FROM peeking.visit AS v) ORDER BY v.peek LIMIT 1)",
    "(SELECT v.place FROM peeking.visit AS v) ORDER BY v.peek",
    f"SELECT {'a' * 63}x.peek FROM peeking.visit AS {'a' * 63}y",
]


@pytest.mark.parametrize("sql", CALLS)
async def test_no_way_to_write_a_call_of_a_foreign_function_passes(
    reader_url: str, sql: str
) -> None:
    access = Access(tables=("peeking.visit", "peeking.peekable"))
    async with await Database.connect(reader_url, access=(access,)) as database:
        with pytest.raises(StatementRefused) as caught:
            await database.execute(sql)
        assert caught.value.rule in {"column", "function", "syntax"}
        assert caught.value.remedy


async def test_the_calls_would_tell_without_the_guard(reader_url: str) -> None:
    """Else the test above would prove nothing."""
    told = 0
    async with await Database.connect(reader_url) as database:
        for sql in CALLS:
            try:
                rows = await database._run(sql)
            except Exception:
                continue
            told += CANARY in repr(rows.rows)
    assert told >= 20


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT v.place, visit_id FROM peeking.visit AS v ORDER BY v.place",
        "SELECT V.PLACE FROM peeking.visit AS v",
        "SELECT peeking.visit.place FROM peeking.visit",
        "SELECT p.peek FROM peeking.peekable AS p",
        "SELECT v.* FROM peeking.visit AS v",
        "SELECT v FROM peeking.visit AS v",
        "SELECT (v).place, (v).* FROM peeking.visit AS v",
        "SELECT v.ctid, v.tableoid FROM peeking.visit AS v",
        "SELECT v.visit_id::pg_catalog.int4 FROM peeking.visit AS v "
        'ORDER BY v.place COLLATE pg_catalog."C"',
        "SELECT v.tags[1], (v.tags)[1] FROM peeking.visit AS v",
        "SELECT s.place, s.n FROM (SELECT v.place, count(*) AS n FROM peeking.visit AS v "
        "GROUP BY v.place) AS s ORDER BY s.n",
        "SELECT s.count, s.max FROM (SELECT count(*), max(visit_id) FROM peeking.visit) AS s",
        "SELECT s.visit_id FROM (SELECT visit_id::text, (place) FROM peeking.visit) AS s",
        "SELECT s.a, s.tags FROM (SELECT * FROM peeking.visit) AS s(a, b)",
        "WITH s AS (SELECT * FROM peeking.visit) SELECT s.place FROM s JOIN s AS t "
        "ON s.visit_id = t.visit_id WHERE t.place <> 'x'",
        "WITH s(a, b) AS (SELECT visit_id, place FROM peeking.visit) "
        "SELECT s.a, t.b FROM s, s AS t",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT s.n + 1 FROM s WHERE s.n < 3) "
        "SELECT s.n FROM s ORDER BY s.n",
        "WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT s.n + 1 FROM s WHERE s.n < 3) "
        "SELECT s.n FROM s ORDER BY s.n",
        "SELECT a.place FROM peeking.visit AS a JOIN peeking.visit AS b USING (visit_id) "
        "WHERE a.place = b.place",
        "SELECT s.place, s.peek FROM (SELECT * FROM peeking.visit NATURAL JOIN peeking.visit AS w "
        "CROSS JOIN peeking.peekable) AS s",
        "SELECT j.place FROM (peeking.visit AS a CROSS JOIN peeking.peekable AS b) AS j",
        "SELECT a.place, b.peek FROM (peeking.visit AS a LEFT JOIN peeking.peekable AS b "
        "ON a.place = b.peek)",
        "SELECT v.place FROM peeking.visit AS v WHERE v.visit_id IN "
        "(SELECT length(v.peek) FROM peeking.peekable AS v JOIN peeking.peekable AS w "
        "ON v.peek = w.peek) OR EXISTS (SELECT 1 FROM peeking.peekable WHERE peek = v.place)",
        "SELECT v.place, l.x FROM peeking.visit AS v, LATERAL (SELECT v.place || '!' AS x) AS l",
        "SELECT v.place, t.tag FROM peeking.visit AS v CROSS JOIN unnest(v.tags) AS t(tag)",
        "SELECT t.tag, t.n FROM peeking.visit AS v, unnest(v.tags) WITH ORDINALITY AS t(tag, n)",
        "SELECT tag FROM peeking.visit AS v, unnest(v.tags) AS tag",
        "SELECT g.g, g FROM generate_series(1, 2) AS g",
        "SELECT h.n FROM generate_series(1, 2) AS h(n)",
        "SELECT e.key, e.value FROM jsonb_each('{\"a\": 1}') AS e",
        "SELECT (jsonb_each('{\"a\": 1}')).key",
        "SELECT x.column1, y.b FROM (VALUES (1, 2)) AS x, (VALUES (1, 2)) AS y(a, b)",
        "SELECT s.place FROM (SELECT place FROM peeking.visit UNION SELECT peek "
        "FROM peeking.peekable) AS s",
        "(SELECT v.place FROM peeking.visit AS v) ORDER BY place",
        "SELECT place FROM peeking.visit UNION SELECT peek FROM peeking.peekable ORDER BY place",
        'SELECT "Ä"."Ö" FROM (SELECT place AS "Ö" FROM peeking.visit) AS "Ä"',
        "SELECT g.MixedCase FROM Größe AS g",
    ],
)
async def test_honest_columns_pass_with_the_rows_of_the_database(
    postgres_server: str, reader_url: str, sql: str
) -> None:
    del reader_url  # Its tables are there.
    async with await Database.connect(postgres_server) as database:
        rows = (await database.execute(sql)).rows
        if "Größe" not in sql:
            assert sorted(map(repr, rows)) == sorted(map(repr, (await database._run(sql)).rows))


def test_a_column_that_is_not_there_is_named_as_the_database_would() -> None:
    schema = Schema("postgres", (Table("customer", (Column("name", "TEXT"),)),), "public")
    with pytest.raises(StatementRefused, match=r"column c\.nam does not exist") as caught:
        check("SELECT c.nam FROM customer AS c", dialect="postgres", schema=schema)
    assert "name" in str(caught.value.remedy)
    assert unknown_name(str(caught.value)) == "nam"
    with pytest.raises(StatementRefused, match=r"column d\.name does not exist, as the FROM has"):
        check("SELECT d.name FROM customer AS c", dialect="postgres", schema=schema)


def test_a_view_has_no_system_columns() -> None:
    view = Table("v", (Column("name", "TEXT"),), is_view=True)
    with pytest.raises(StatementRefused, match="ctid"):
        check("SELECT v.ctid FROM v", dialect="postgres", schema=Schema("postgres", (view,)))


def test_columns_of_queries_that_double_are_not_counted_for_ever() -> None:
    schema = Schema("postgres", (Table("customer", (Column("name", "TEXT"),)),), "public")
    queries = ", ".join(f"q{n} AS (SELECT * FROM q{n - 1} a, q{n - 1} b)" for n in range(1, 60))
    sql = f"WITH q0 AS (SELECT * FROM customer), {queries} SELECT q59.name FROM q59"
    with pytest.raises(StatementRefused):
        check(sql, dialect="postgres", schema=schema)
