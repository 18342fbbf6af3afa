"""Nothing that passes the guard is stopped by the database as forbidden, or changes anything.

Statements are mutated by cutting and splicing the tokens of hostile and honest ones, and by odd
characters. The two layers are independent, so each tests the other: a statement that the guard lets
through and a wall of the database stops is a hole in the guard. What must not be read holds a text
that is nowhere else, and no result may hold it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlglot.errors import SqlglotError

from hexprefect.text2sql.access import Access
from hexprefect.text2sql.audit import LOGGER
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.parsing import tokenize

SHORT = int(os.environ.get("HEXPREFECT_FUZZ_MUTATIONS", "600"))
"""Mutations of each test and engine by default."""
LONG = 30_000
"""Mutations of each test and engine in the slow run: more than 100,000 over all engines."""

HONEST = (
    "SELECT name, city FROM customer WHERE city = 'London' ORDER BY name LIMIT 3",
    'SELECT c.name, SUM(o.amount) FROM customer AS c JOIN "order" AS o '
    "ON c.customer_id = o.customer_id GROUP BY c.name HAVING COUNT(*) > 1",
    "WITH a(n) AS (SELECT COUNT(*) FROM customer) SELECT n, (SELECT MAX(amount) FROM big_order) "
    "FROM a",
    "SELECT name FROM customer EXCEPT SELECT name FROM customer WHERE city IS NULL",
    "SELECT CASE WHEN city LIKE 'L%' THEN UPPER(name) ELSE 'x' END FROM customer",
    "SELECT * FROM customer WHERE customer_id IN (SELECT customer_id FROM customer)",
    "SELECT name, ROW_NUMBER() OVER (PARTITION BY city ORDER BY name) FROM customer",
)
NOSY = (
    "SELECT * FROM customer",
    "SELECT customer.* FROM customer",
    "SELECT customer FROM customer",
    "SELECT c FROM customer AS c",
    "SELECT city FROM customer",
    "SELECT c.city FROM customer c",
    "SELECT name FROM customer ORDER BY city",
    "SELECT MAX(city), COUNT(DISTINCT city) FROM customer GROUP BY city",
    "SELECT * FROM customer NATURAL JOIN customer AS b",
    "SELECT * FROM customer JOIN customer AS b USING (city)",
    "WITH x AS (SELECT * FROM customer) SELECT city FROM x",
    "WITH customer AS (SELECT * FROM customer) SELECT * FROM customer",
    "WITH RECURSIVE customer AS (SELECT * FROM customer) SELECT * FROM customer",
    'WITH "SECRET" AS (SELECT 1) SELECT * FROM secret',
    "SELECT * FROM secret",
    "SELECT * FROM shown_secret",
    "SELECT * FROM shown_customer",
    "SELECT * FROM main.customer",
    "SELECT * FROM public.secret",
    "SELECT * FROM shop.secret",
    "SELECT note FROM secret UNION SELECT name FROM customer",
    "SELECT name FROM customer WHERE EXISTS (SELECT 1 FROM secret)",
    "SELECT (SELECT MAX(note) FROM secret), name FROM customer",
    "SELECT name IN secret FROM customer",
    "SELECT row_to_json(c) FROM customer AS c",
    "SELECT to_json(customer), c::text FROM customer AS c",
    "SELECT (c).city, (customer).city FROM customer, customer AS c",
    "SELECT COLUMNS('.*') FROM customer",
    "FROM customer SELECT city",
    "SELECT * EXCLUDE (name) FROM customer",
    "SELECT * FROM (customer AS c JOIN secret ON TRUE)",
    "SELECT * FROM customer, LATERAL (SELECT * FROM secret) AS s",
    "SELECT max(a) FROM customer AS c(i, n, a)",
    "SELECT rowid, ctid FROM customer",
    "SELECT c.peek, customer.peek FROM customer c, customer",
    "SELECT (c).peek, (c.name).peek FROM customer AS c ORDER BY c.peek",
    "SELECT s.peek FROM (SELECT name FROM customer) AS s WHERE s.peek LIKE 'c%'",
    "WITH x AS (SELECT c FROM customer AS c) SELECT x.peek, (x.c).peek FROM x",
    "SELECT peek.peek FROM generate_series(1, 2) AS peek(n)",
    "TABLE customer",
    "TABLE secret",
)
ODD = (
    "'",
    '"',
    "`",
    "\\",
    ";",
    "--",
    "/*",
    "*/",
    "/*!",
    "#",
    "$$",
    "ſ",
    "\u00a0",
    "\ufeff",
    "::",
    "[",
    "]",
)

CANARY = "canary 7f3a"


@pytest.fixture(autouse=True)
def without_the_log() -> Iterator[None]:
    """Thousands of refusals would hide the one that matters."""
    LOGGER.disabled = True
    yield
    LOGGER.disabled = False


def pieces(sql: str) -> list[str]:
    try:
        return [sql[token.start : token.end + 1] for token in tokenize(sql, "sqlite")]
    except SqlglotError:
        return sql.split()


def mutated(draw: random.Random, corpus: list[list[str]]) -> str:
    """One to three tokens replaced, left out or put in, or a run of them spliced in."""
    words = list(draw.choice(corpus))
    for _ in range(draw.choice([1, 1, 2, 3])):
        other = draw.choice(corpus)
        first = draw.randrange(len(other))
        piece = other[first : first + draw.choice([0, 1, 1, 1, 2, 6])]
        if draw.random() < 0.08:
            piece = [draw.choice(ODD)]
        start = draw.randrange(len(words) + 1)
        words[start : start + draw.choice([0, 1, 1, 2])] = piece
    return draw.choice([" ", " ", " ", "\t", "\n"]).join(words)


def corpus_of(dialect: str, extra: tuple[str, ...] = ()) -> list[list[str]]:
    hostile = [
        line
        for name in ("every", dialect)
        for line in (Path(__file__).parent / "hostile" / f"{name}.sql").read_text().splitlines()
    ]
    honest = [*HONEST * 10, *extra * 4]
    if dialect == "mysql":
        honest = [sql.replace('"', "`") for sql in honest]
    # Honest statements are drawn about as often as hostile ones, so that enough mutants pass.
    return [pieces(sql) for sql in (*hostile, *honest * max(1, len(hostile) // len(honest)))]


async def run_mutants(
    database: Database, corpus: list[list[str]], *, seed: int, count: int
) -> tuple[int, list[tuple[str, str]], list[tuple[str, str]]]:
    """How many passed, which of these a wall stopped, and which showed the canary."""
    draw = random.Random(seed)
    passed, holes, leaks = 0, [], []
    for _ in range(count):
        sql = mutated(draw, corpus)
        try:
            checked = await database.check(sql)
        except StatementRefused:
            continue
        passed += 1
        try:
            rows = await database.run_checked(checked)
        except StatementFailed as failure:
            if failure.cause == "forbidden":
                holes.append((sql, checked.sql))
            continue
        if CANARY in repr(rows.rows):
            leaks.append((sql, checked.sql))
    return passed, holes, leaks


async def what_passes_is_harmless(engine: Any, count: int) -> None:
    before = engine.state()
    async with await Database.connect(
        engine.url, limits=Limits(timeout_s=2, max_rows=50)
    ) as database:
        passed, holes, _ = await run_mutants(
            database, corpus_of(engine.dialect), seed=20241201, count=count
        )
    assert holes == []
    assert passed > count // 50
    assert engine.state() == before


async def test_what_passes_the_guard_is_harmless(engine: Any) -> None:
    await what_passes_is_harmless(engine, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_what_passes_the_guard_is_harmless_at_length(engine: Any) -> None:
    await what_passes_is_harmless(engine, LONG)


async def what_is_hidden_stays_hidden(engine: Any, count: int) -> None:
    async with await Database.connect(
        engine.url,
        limits=Limits(timeout_s=2, max_rows=200),
        access=(
            Access(schemas=()),
            Access(columns={"customer": ("customer_id", "name"), "secret": ("id",)}),
            Access(tables=("customer", "order", "big_order", "Größe")),
        ),
    ) as database:
        passed, holes, leaks = await run_mutants(
            database, corpus_of(engine.dialect, NOSY), seed=7, count=count
        )
    assert leaks == []
    assert holes == []
    assert passed > count // 50


async def test_what_is_hidden_stays_hidden(canary_engine: Any) -> None:
    await what_is_hidden_stays_hidden(canary_engine, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_what_is_hidden_stays_hidden_at_length(canary_engine: Any) -> None:
    await what_is_hidden_stays_hidden(canary_engine, LONG)


async def test_the_canary_is_seen_without_the_allow_list(canary_engine: Any) -> None:
    """Else the tests above would prove nothing."""
    async with await Database.connect(canary_engine.url) as database:
        for sql in ("SELECT * FROM customer", "SELECT * FROM secret", "SELECT * FROM shown_secret"):
            assert CANARY in repr((await database.execute(sql)).rows)
