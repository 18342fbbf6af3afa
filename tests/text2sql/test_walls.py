"""What the databases hold back by themselves, on each engine: the guard stands aside here."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits

HOSTILE = Path(__file__).parent / "hostile"

ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT COUNT(*) FROM n",
    "postgres": "SELECT COUNT(*) FROM generate_series(1, 100000000) a, generate_series(1, 1000) b",
    "duckdb": "SELECT COUNT(*) FROM range(100000000) a, range(10000000) b "
    "WHERE hash(a.range + b.range) = 1",
    "mysql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
    "SELECT COUNT(*) FROM n a, n b, n c, n d, n e",
}
MANY_ROWS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "postgres": "SELECT a FROM generate_series(1, 30000) a, generate_series(1, 30000) b",
    "duckdb": "SELECT a.range FROM range(100000000) a, range(10000) b",
    "mysql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
    "SELECT a.i FROM n a, n b, n c",
}
MAY_RUN = {
    # SQLite only describes what EXPLAIN explains, and reads no WITH query that nobody asks for.
    "sqlite": re.compile("EXPLAIN|WITH x AS"),
    # Only read, set what the transaction forgets, or lock what the next checkout releases.
    "postgres": re.compile("SELECT|WITH"),
    # DuckDB's parser says that it is one SELECT; what it tells is refused by the guard.
    "duckdb": re.compile(r"SELECT|WITH|FROM|DESCRIBE|SUMMARIZE|SHOW|UNPIVOT|\("),
    # What the transaction, the session or the account forgets; compared by state.
    "mysql": re.compile(".*"),
}


def hostile_statements(dialect: str) -> list[str]:
    return [
        line
        for name in ("every", dialect)
        for line in (HOSTILE / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    ]


def shown_files() -> set[str]:
    return {str(path) for path in Path("/tmp").glob("stolen*")}


async def test_hostile_statements_leave_everything_as_it_was(engine: Any) -> None:
    statements = hostile_statements(engine.dialect)
    assert len(set(statements)) >= 150
    before, files = engine.state(), shown_files()
    ran = []
    async with await Database.connect(
        engine.url, limits=Limits(timeout_s=1, connections=1)
    ) as database:
        for sql in statements:
            with pytest.raises(StatementRefused):
                await database.check(sql)
            try:
                rows = await database._run(sql)
            except StatementFailed:
                continue
            ran.append(sql)
            assert "root:" not in repr(rows.rows), sql
        # The session is as good as new.
        assert (await database.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)
    assert engine.state() == before
    assert shown_files() == files
    assert [sql for sql in ran if not MAY_RUN[engine.dialect].match(sql)] == []


async def test_an_endless_statement_stops_at_its_timeout(engine: Any) -> None:
    async with await Database.connect(
        engine.url, limits=Limits(timeout_s=0.3, connections=1)
    ) as database:
        for _ in range(2):
            with pytest.raises(StatementFailed) as caught:
                await database.execute(ENDLESS[engine.dialect])
            assert caught.value.cause == "timeout"
        assert (await database.execute("SELECT 1")).rows == ((1,),)


async def test_cancelling_the_wait_stops_the_statement_and_frees_the_session(engine: Any) -> None:
    async with await Database.connect(
        engine.url, limits=Limits(timeout_s=600, connections=1)
    ) as database:
        await database.schema()
        work = asyncio.create_task(database.execute(ENDLESS[engine.dialect]))
        await asyncio.sleep(0.3)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        # Its only session is free again, and works.
        async with asyncio.timeout(60):
            assert (await database.execute("SELECT 1")).rows == ((1,),)


async def test_rows_are_capped_without_reading_the_rest(engine: Any) -> None:
    async with await Database.connect(
        engine.url, limits=Limits(max_rows=10, timeout_s=20, connections=1)
    ) as database:
        for _ in range(3):
            rows = await database.execute(MANY_ROWS[engine.dialect])
            assert len(rows.rows) == 10
            assert rows.truncated
            assert "10 rows" in rows.notes[0]


async def test_what_a_statement_sets_does_not_outlive_it(engine: Any) -> None:
    left_behind = {
        "sqlite": ("CREATE TEMP TABLE t (a INTEGER)", "SELECT COUNT(*) FROM t"),
        "postgres": ("SELECT set_config('a.b', 'left', false)", "SELECT current_setting('a.b')"),
        "duckdb": ("SET VARIABLE a = 'left'", "SELECT 'left' WHERE getvariable('a') = 'left'"),
        "mysql": ("SET @a = 'left'", "SELECT 'left' WHERE @a = 'left'"),
    }
    write, read = left_behind[engine.dialect]
    async with await Database.connect(engine.url, limits=Limits(connections=1)) as database:
        for sql in (write, read):
            try:
                rows = (await database._run(sql)).rows
            except StatementFailed:
                rows = ()
        assert rows in ((), ((None,),), (("",),))


async def test_a_session_serves_many_statements_and_many_sessions_serve_at_once(
    engine: Any,
) -> None:
    async with await Database.connect(engine.url, limits=Limits(connections=3)) as database:
        results = await asyncio.gather(*(database.execute(f"SELECT {n}") for n in range(30)))
        assert [rows.rows for rows in results] == [((n,),) for n in range(30)]
        assert len(database._idle) <= 3


async def test_the_catalogue_is_read_with_schemas_comments_keys_and_views(engine: Any) -> None:
    async with await Database.connect(engine.url) as database:
        schema = await database.schema()
        order = schema.table("order")
        assert order is not None
        assert order.primary_key == ("order_id",)
        view = schema.table("big_order")
        assert view is not None
        assert view.is_view
        size = schema.table("Größe")
        assert size is not None
        assert [column.name for column in size.columns] == ["Schlüssel", "select", "MixedCase"]
        customer = schema.table("customer")
        assert customer is not None
        city = customer.column("city")
        assert city is not None
        assert city.samples == ("'London'", "'New York'")
        if engine.dialect != "mysql":
            # MariaDB ignores a REFERENCES behind a column.
            assert order.foreign_keys[0].table == "customer"
        if engine.dialect != "sqlite":
            assert customer.comment == "people who bought"
            assert city.comment == "where the customer lives"
            assert schema.table("customer", "archive") is not None


async def test_awkward_names_and_several_schemas_can_be_asked(engine: Any) -> None:
    quote = "`" if engine.dialect == "mysql" else '"'
    async with await Database.connect(engine.url) as database:
        rows = await database.execute(
            f"SELECT {quote}Order Date{quote} FROM {quote}order{quote} ORDER BY order_id"
        )
        assert rows.rows[0] == ("2024-01-05",)
        rows = await database.execute(
            "SELECT g.select, MixedCase FROM Größe AS g ORDER BY Schlüssel"
        )
        assert rows.rows == (("a", "x"), ("b", "y"))
        rows = await database.execute(
            "SELECT COUNT(*) AS update FROM customer AS select_ ORDER BY update"
        )
        assert (rows.columns, rows.rows) == (("update",), ((3,),))
        rows = await database.execute("SELECT CUSTOMER.name FROM CUSTOMER ORDER BY name LIMIT 1")
        assert rows.rows == (("Ada",),)
        if engine.dialect != "sqlite":
            assert (await database.execute("SELECT note FROM archive.customer")).rows == (("old",),)


async def test_an_account_that_reaches_past_the_transaction_is_refused(
    mariadb_server: Any,
) -> None:
    for user, privilege in (("filer", "FILE"), ("root", "SUPER|SHUTDOWN|FILE|BINLOG")):
        url = mariadb_server.url(user).replace("root:secret@", "root@")
        with pytest.raises(CallerMistake, match=privilege) as caught:
            await Database.connect(url)
        assert "secret" not in str(caught.value)
        assert "GRANT SELECT" in str(caught.value)


async def test_a_privilege_that_a_role_brings_is_seen_too(mariadb_server: Any) -> None:
    for statement in (
        "CREATE OR REPLACE ROLE filing",
        "GRANT FILE ON *.* TO filing",
        "CREATE OR REPLACE ROLE clerk",
        "GRANT filing TO clerk",
        "CREATE OR REPLACE USER roled IDENTIFIED BY 'secret'",
        "GRANT SELECT ON shop.* TO roled",
        "GRANT clerk TO roled",
    ):
        mariadb_server.rows(statement)
    try:
        async with await Database.connect(mariadb_server.url("roled")) as database:
            assert (await database.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)
        mariadb_server.rows("SET DEFAULT ROLE clerk FOR roled")
        with pytest.raises(CallerMistake, match="FILE"):
            await Database.connect(mariadb_server.url("roled"))
    finally:
        for statement in ("DROP USER roled", "DROP ROLE clerk", "DROP ROLE filing"):
            mariadb_server.rows(statement)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a:s3cret@127.0.0.1:1/x",
        "mariadb://a:s3cret@127.0.0.1",
        "mysql://a@127.0.0.1:1/x?passwd=s3cret",
    ],
)
async def test_an_unreachable_mysql_is_named_without_its_password(url: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        await Database.connect(url)
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("url", ["duckdb://", "duckdb:///:memory:", "duckdb:////nowhere/a.duckdb"])
async def test_a_url_without_a_duckdb_file_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        await Database.connect(url)
    assert caught.value.remedy


async def test_a_duckdb_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "letter.duckdb"
    path.write_text("Dear all, this is not a database. " * 100)
    with pytest.raises(CallerMistake, match=r"letter\.duckdb"):
        await Database.connect(f"duckdb:///{path}")
