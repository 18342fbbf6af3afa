"""Reading a catalogue ends, whatever a view does: late values are left out, and nobody hangs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.dialects.registry import adapter_for
from hexprefect.text2sql.patience import Patience
from hexprefect.text2sql.reflection import reflect
from hexprefect.text2sql.schema import Schema
from hexprefect.text2sql.snapshots import snapshots
from tests.text2sql.conftest import Engine, run_as_owner

_MANY = "(SELECT 1 AS i FROM customer a, customer b, customer c, customer d, customer e)"
ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT COUNT(*) AS c FROM n",
    "duckdb": "SELECT COUNT(*) AS c FROM range(10000000000) a, range(10000000000) b "
    "WHERE a.range * b.range = 7",
    "postgres": "SELECT COUNT(*) AS c FROM generate_series(1, 100000000) a, "
    "generate_series(1, 1000) b",
    "mysql": "SELECT COUNT(*) AS c FROM " + ", ".join(f"{_MANY} AS {name}" for name in "pqrst"),
}


@pytest.fixture
def endless(engine: Engine) -> Iterator[Engine]:
    """A shop whose view `a_endless` never gives a row."""
    run_as_owner(engine, f"CREATE VIEW a_endless AS {ENDLESS[engine.dialect]}")
    yield engine
    run_as_owner(engine, "DROP VIEW a_endless")


def samples(schema: Schema, table: str, column: str) -> tuple[str, ...]:
    found = schema.table(table)
    assert found is not None
    held = found.column(column)
    assert held is not None
    return held.samples


def test_a_view_that_takes_too_long_is_shown_without_values(endless: Engine) -> None:
    schema = reflect(adapter_for(endless.url), Patience(piece_s=0.5))
    assert samples(schema, "a_endless", "c") == ()
    assert "'Ada'" in samples(schema, "customer", "name")


async def test_nobody_waits_for_a_view_that_a_cancelled_reading_began(endless: Engine) -> None:
    async with await Database.connect(endless.url) as database:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await database.schema()
        async with asyncio.timeout(60):
            found = await asyncio.to_thread(
                snapshots.current,
                database._key,
                database.adapter,
                patience=Patience(piece_s=0.2),
            )
        assert "'Ada'" in samples(found.schema, "customer", "name")


async def test_who_waits_for_the_reading_of_another_can_be_cancelled(shop_file: Path) -> None:
    with contextlib.closing(sqlite3.connect(shop_file)) as file:
        file.executescript(f"CREATE VIEW a_endless AS {ENDLESS['sqlite']}")
    url = f"sqlite:///{shop_file}"
    async with await Database.connect(url) as one, await Database.connect(url) as other:
        first = asyncio.create_task(one.schema())
        await asyncio.sleep(0.1)
        second = asyncio.create_task(other.schema())
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            for task in (second, first):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
