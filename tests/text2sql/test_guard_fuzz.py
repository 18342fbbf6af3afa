"""Nothing that passes the guard is stopped by the database as forbidden, or changes anything.

Statements are mutated by cutting and splicing the tokens of hostile and honest ones. The two layers
are independent, so each tests the other: a statement that the guard lets through and the authorizer
calls forbidden is a hole in the guard.
"""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from sqlglot.errors import SqlglotError

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.parsing import tokenize

# For a long run: HEXPREFECT_FUZZ_MUTATIONS=100000 pytest PATH_OF_THIS_FILE --timeout 0
MUTATIONS = int(os.environ.get("HEXPREFECT_FUZZ_MUTATIONS", "1500"))
HONEST = (
    "SELECT name, city FROM customer WHERE city = 'London' ORDER BY name LIMIT 3",
    'SELECT c.name, SUM(o.amount) FROM customer AS c JOIN "order" AS o '
    "ON c.customer_id = o.customer_id GROUP BY c.name HAVING COUNT(*) > 1",
    "WITH a(n) AS (SELECT COUNT(*) FROM customer) SELECT n, (SELECT MAX(amount) FROM big_order) "
    "FROM a",
    "SELECT name FROM customer EXCEPT SELECT name FROM customer WHERE city IS NULL",
    "SELECT CASE WHEN city LIKE 'L%' THEN UPPER(name) ELSE 'x' END FROM customer",
    "VALUES (1, 'a'), (2, 'b')",
)


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
        start = draw.randrange(len(words) + 1)
        words[start : start + draw.choice([0, 1, 1, 2])] = piece
    return " ".join(words)


async def test_what_passes_the_guard_is_harmless(shop_file: Path) -> None:
    hostile = [
        line
        for name in ("both", "sqlite")
        for line in (Path(__file__).parent / "hostile" / f"{name}.sql").read_text().splitlines()
    ]
    # Honest statements are drawn as often as hostile ones, so that enough mutants pass.
    corpus = [pieces(sql) for sql in hostile] + [pieces(sql) for sql in HONEST] * 20
    draw = random.Random(20241201)
    before = hashlib.sha256(shop_file.read_bytes()).hexdigest()  # noqa: ASYNC240
    passed = 0
    holes = []
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(timeout_s=2, max_rows=50)
    ) as database:
        for _ in range(MUTATIONS):
            sql = mutated(draw, corpus)
            try:
                checked = await database.check(sql)
            except StatementRefused:
                continue
            passed += 1
            try:
                await database.run_checked(checked)
            except StatementFailed as failure:
                if failure.cause == "forbidden":
                    holes.append((sql, checked.sql))
    assert holes == []
    assert passed > MUTATIONS // 40
    assert hashlib.sha256(shop_file.read_bytes()).hexdigest() == before  # noqa: ASYNC240
