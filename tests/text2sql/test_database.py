"""A SQLite database: opened only if it is there, read only, bounded, stopped when told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import Rows

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"


async def test_a_missing_file_is_named_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "absent.sqlite"
    with pytest.raises(CallerMistake, match=r"absent\.sqlite"):
        await Database.connect(f"sqlite:///{path}")
    assert os.listdir(tmp_path) == []


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "letter.sqlite"
    path.write_text("Dear all, this is not a database. " * 100)
    with pytest.raises(CallerMistake, match=r"letter\.sqlite"):
        await Database.connect(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "url", ["", "not a url", "sqlite://", "sqlite:///:memory:", "oracle://a:s3cret@h/x"]
)
async def test_a_url_that_cannot_serve_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        await Database.connect(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy


async def test_a_path_with_odd_characters_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "größe 100%?#.sqlite"
    sqlite3.connect(path).executescript("CREATE TABLE a (b INTEGER)")
    async with await Database.connect(f"sqlite:///{str(path).replace('?', '%3F')}") as database:
        assert (await database.schema()).table("a") is not None


async def test_an_endless_statement_stops_at_its_timeout(shop_file: Path) -> None:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(timeout_s=0.2, connections=1)
    ) as database:
        with pytest.raises(StatementFailed) as caught:
            await database.execute(ENDLESS)
        assert caught.value.cause == "timeout"
        assert (await database.execute("SELECT 1")).rows == ((1,),)


async def test_cancelling_the_wait_stops_the_statement_and_frees_the_session(
    shop_file: Path,
) -> None:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(timeout_s=600, connections=1)
    ) as database:
        await database.schema()
        work = asyncio.create_task(database.execute(ENDLESS))
        await asyncio.sleep(0.1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        # Its only session is free again, and works.
        async with asyncio.timeout(60):
            assert (await database.execute("SELECT 1")).rows == ((1,),)


async def test_the_event_loop_runs_while_a_statement_does(shop_file: Path) -> None:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(timeout_s=1)
    ) as database:
        work = asyncio.create_task(database.execute(ENDLESS))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(StatementFailed):
            await work
        assert turns > 5


async def test_the_event_loop_runs_while_a_long_statement_is_checked(shop: Database) -> None:
    await shop.schema()
    numbers = ",".join(map(str, range(4_000)))
    work = asyncio.create_task(shop.check(f"SELECT 1 WHERE 1 IN ({numbers})"))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await work).sql
    assert turns > 5


class _Lost:
    """A session whose connection is gone, and which takes its time to notice."""

    def __init__(self) -> None:
        self.closed_by: threading.Thread | None = None

    def run(self, sql: str, *, limits: Limits) -> Rows:
        raise StatementFailed("The server went away.", cause="connection")

    def interrupt(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.closed_by = threading.current_thread()


async def test_a_session_is_closed_beside_the_event_loop(shop: Database) -> None:
    lost = _Lost()
    await shop.schema()
    shop._idle.append(lost)
    with pytest.raises(StatementFailed):
        await shop.execute("SELECT 1")
    assert (await shop.execute("SELECT 1")).rows == ((1,),)
    await shop.close()
    assert lost.closed_by not in (None, threading.main_thread())


async def test_more_statements_than_sessions_wait_their_turn(shop_file: Path) -> None:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(connections=2)
    ) as database:
        results = await asyncio.gather(*(database.execute(f"SELECT {n}") for n in range(40)))
        assert [rows.rows for rows in results] == [((n,),) for n in range(40)]
        assert len(database._idle) <= 2


async def test_rows_are_capped_and_the_result_says_so(shop_file: Path) -> None:
    series = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n{}) SELECT i FROM n"
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(max_rows=10)
    ) as database:
        capped = await database.execute(series.format(""))
        assert len(capped.rows) == 10
        assert capped.truncated
        assert "10 rows" in capped.notes[0]
        exact = await database.execute(series.format(" WHERE i < 10"))
        assert len(exact.rows) == 10
        assert not exact.truncated


async def test_bytes_are_capped(shop_file: Path) -> None:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(max_bytes=1_000, max_value_characters=100)
    ) as database:
        rows = await database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT HEX(ZEROBLOB(500)) FROM n"
        )
        assert len(rows.rows) == 10
        assert all(len(row[0]) == 100 for row in rows.rows)
        assert len(rows.notes) == 2


async def test_a_huge_value_cannot_take_the_memory(shop: Database) -> None:
    with pytest.raises(StatementFailed):
        await shop.execute("SELECT ZEROBLOB(1000000000)")


async def test_text_that_is_not_utf8_is_still_read(shop: Database) -> None:
    rows = await shop.execute("SELECT CAST(x'ff41' AS TEXT)")
    assert rows.rows == (("\ufffdA",),)


async def test_a_full_text_table_can_be_read_through_the_authorizer(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE VIRTUAL TABLE note USING fts5(body); INSERT INTO note VALUES ('a red fox');"
    )
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        rows = await database._run("SELECT body FROM note WHERE note MATCH 'fox'")
        assert rows.rows == (("a red fox",),)


async def test_reserved_spaced_and_non_ascii_names_work(shop: Database) -> None:
    rows = await shop.execute('SELECT "Order Date" FROM "order" ORDER BY order_id')
    assert rows.rows[0] == ("2024-01-05",)
    rows = await shop.execute("SELECT g.select, MixedCase FROM Größe AS g ORDER BY Schlüssel")
    assert rows.rows == (("a", "x"), ("b", "y"))


async def test_the_schema_is_read_once_and_again_when_asked(
    shop: Database, shop_file: Path
) -> None:
    before = await shop.schema()
    assert await shop.schema() is before
    connection = sqlite3.connect(shop_file)
    connection.execute("ALTER TABLE customer ADD COLUMN email TEXT")
    connection.close()
    after = await shop.schema(refresh=True)
    assert after.fingerprint != before.fingerprint
    assert (await shop.execute("SELECT email FROM customer LIMIT 1")).rows == ((None,),)


async def test_statements_see_the_file_that_took_the_place_of_the_first(
    shop: Database, shop_file: Path
) -> None:
    assert (await shop.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)
    other = shop_file.with_name("other.sqlite")
    with contextlib.closing(sqlite3.connect(other)) as file:
        file.executescript("CREATE TABLE customer (email TEXT); INSERT INTO customer VALUES ('a')")
    os.replace(other, shop_file)
    await shop.schema(refresh=True)
    assert (await shop.execute("SELECT email FROM customer")).rows == (("a",),)
    # It is behind the same walls.
    with pytest.raises(StatementFailed) as caught:
        await shop._run("SELECT load_extension('x')")
    assert caught.value.cause == "forbidden"


async def test_a_file_that_took_the_place_and_is_no_database_is_said_so(
    shop: Database, shop_file: Path
) -> None:
    await shop.schema()
    letter = shop_file.with_name("letter")
    letter.write_text("Dear all, this is not a database. " * 100)
    os.replace(letter, shop_file)
    with pytest.raises(StatementFailed, match="was replaced") as caught:
        await shop.execute("SELECT 1")
    assert caught.value.cause == "connection"


async def test_there_is_no_public_way_around_the_guard(shop: Database) -> None:
    with pytest.raises(StatementRefused):
        await shop.execute("DELETE FROM customer")
