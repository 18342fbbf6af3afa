"""PostgreSQL behind its walls: one statement, read-only, stopped on the server, reset after use."""

from __future__ import annotations

import asyncio
import datetime
import random

import psycopg
import pytest

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.dialects import postgresql
from hexprefect.text2sql.dialects.postgresql import _explain
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits


def active_statements(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT query FROM pg_stat_activity "
            "WHERE application_name = 'hexprefect' AND state = 'active'"
        ).fetchall()
    return [row[0] for row in rows]


async def until_active(url: str) -> None:
    for _ in range(500):
        if active_statements(url):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the statement never became active on the server")


async def test_reads_the_catalogue_with_schemas_comments_and_keys(
    postgres_shop: Database,
) -> None:
    schema = await postgres_shop.schema()
    customer = schema.table("customer")
    assert customer is not None
    assert customer.comment == "people who bought"
    city = customer.column("city")
    assert city is not None
    assert city.comment == "where the customer lives"
    assert schema.table("customer", "archive") is not None
    order = schema.table("order")
    assert order is not None
    assert order.foreign_keys[0].table == "customer"
    view = schema.table("big_order")
    assert view is not None
    assert view.is_view


async def test_names_of_two_schemas_are_kept_apart(postgres_shop: Database) -> None:
    rows = await postgres_shop.execute("SELECT note FROM archive.customer")
    assert rows.rows == (("old",),)
    rows = await postgres_shop.execute("SELECT COUNT(*) FROM public.customer")
    assert rows.rows == ((3,),)


async def test_mixed_case_names_are_quoted_from_the_catalogue(postgres_shop: Database) -> None:
    rows = await postgres_shop.execute("SELECT MixedCase FROM Größe ORDER BY Schlüssel")
    assert rows.rows == (("x",), ("y",))


async def test_results_are_exact_and_typed(postgres_shop: Database) -> None:
    rows = await postgres_shop.execute(
        "SELECT 1.10::numeric AS price, DATE '2024-02-29' AS day, "
        "TIMESTAMP WITH TIME ZONE '2024-02-29 12:00:00+00' AS at, 'NaN'::float8 AS odd, "
        "'\\x00ff'::bytea AS raw, NULL AS nothing, TRUE AS yes, "
        "'b3b7c0de-0000-4000-8000-000000000001'::uuid AS id, '{\"a\": [1]}'::jsonb AS doc"
    )
    row = dict(zip(rows.columns, rows.rows[0], strict=True))
    types = dict(zip(rows.columns, rows.types, strict=True))
    assert row["price"] == "1.10"
    assert types["price"] == "decimal"
    assert row["day"] == "2024-02-29"
    assert datetime.datetime.fromisoformat(row["at"]).utcoffset() is not None
    assert (row["odd"], types["odd"]) == ("NaN", "number")
    assert (row["raw"], types["raw"]) == ("AP8=", "bytes")
    assert (row["nothing"], types["nothing"]) == (None, "null")
    assert row["yes"] is True
    assert types["id"] == "uuid"
    assert row["doc"] == {"a": [1]}


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("interval '1 month'", "interval", "P1M"),
        ("interval '1 year 2 months 3 days 4 hours'", "interval", "P14M3DT14400S"),
        ("interval '-1 month'", "interval", "-P1M"),
        ("interval '1 month -1 day'", "interval", "P1M-1DT-0S"),
        ("interval '30 days'", "interval", "P30DT0S"),
        ("interval '-90 seconds'", "interval", "-P0DT90S"),
        ("interval '0.000001 seconds'", "interval", "P0DT0.000001S"),
        ("interval '1 month' - interval '1 month'", "interval", "P0DT0S"),
        ("date 'infinity'", "date", "infinity"),
        ("date '-infinity'", "date", "-infinity"),
        ("date '0044-03-15 BC'", "date", "0044-03-15 BC"),
        ("date '2024-02-29'", "date", "2024-02-29"),
        ("timestamp 'infinity'", "timestamp", "infinity"),
        ("timestamptz '-infinity'", "timestamp", "-infinity"),
        ("time '24:00'", "time", "24:00:00"),
        ("'1.10'::jsonb", "json", 1.1),
        ("'12345678901234567890.12'::jsonb", "json", "12345678901234567890.12"),
        ("'1e999999999999999999999'::json", "json", "1e999999999999999999999"),
        ("('[' || REPEAT('9', 5000) || ']')::json", "json", ["9" * 5000]),
        ("'\"\\ud800\"'::json", "json", "\N{REPLACEMENT CHARACTER}"),
        ("'\"x\"'::json", "json", "x"),
        ("'null'::jsonb", "json", {"type": "json", "value": None}),
        ("NULL::jsonb", "null", None),
        ("ARRAY[date 'infinity', date '2024-02-29']", "json", ["infinity", "2024-02-29"]),
        ("ARRAY['1.10'::jsonb, 'null'::jsonb]", "json", [1.1, None]),
    ],
)
async def test_every_value_of_the_server_is_given_as_it_is(
    postgres_shop: Database, expression: str, kind: str, value: object
) -> None:
    rows = await postgres_shop._run(f"SELECT {expression} AS it")
    assert (rows.types, rows.rows) == ((kind,), ((value,),))


async def test_a_json_null_is_a_row_that_was_found(postgres_shop: Database) -> None:
    assert not (await postgres_shop._run("SELECT 'null'::jsonb")).is_empty
    assert (await postgres_shop._run("SELECT NULL::jsonb")).is_empty


async def test_a_statement_is_stopped_on_the_server_at_its_timeout(postgres_server: str) -> None:
    slow = "SELECT COUNT(*) FROM generate_series(1, 100000000) a, generate_series(1, 1000) b"
    async with await Database.connect(postgres_server, limits=Limits(timeout_s=0.3)) as database:
        with pytest.raises(StatementFailed) as caught:
            await database.execute(slow)
        assert caught.value.cause == "timeout"
        assert active_statements(postgres_server) == []
        assert (await database.execute("SELECT 1")).rows == ((1,),)


async def test_cancelling_the_wait_cancels_on_the_server(postgres_server: str) -> None:
    slow = "SELECT COUNT(*) FROM generate_series(1, 100000000) a, generate_series(1, 1000) b"
    async with await Database.connect(postgres_server, limits=Limits(timeout_s=60)) as database:
        await database.schema()
        work = asyncio.create_task(database.execute(slow))
        await until_active(postgres_server)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert active_statements(postgres_server) == []
        assert (await database.execute("SELECT 1")).rows == ((1,),)


@pytest.mark.parametrize("when", ["while it runs", "while it is idle"])
async def test_a_session_that_the_server_ended_is_no_mistake_of_the_statement(
    postgres_server: str, when: str
) -> None:
    slow = "SELECT COUNT(*) FROM generate_series(1, 100000000) a, generate_series(1, 1000) b"
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
    async with await Database.connect(postgres_server, limits=Limits(connections=1)) as database:
        await database.schema()
        if when == "while it runs":
            work = asyncio.create_task(database.execute(slow))
            await until_active(postgres_server)
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute((end + "'hexprefect'").encode())
        if when == "while it is idle":
            work = asyncio.create_task(database.execute("SELECT 1"))
        with pytest.raises(StatementFailed) as caught:
            await work
        assert caught.value.cause == "connection"
        assert (await database.execute("SELECT 1")).rows == ((1,),)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (psycopg.errors.AdminShutdown, "connection"),
        (psycopg.errors.CrashShutdown, "connection"),
        (psycopg.errors.CannotConnectNow, "connection"),
        (psycopg.errors.ConnectionFailure, "connection"),
        (psycopg.errors.IoError, "connection"),
        (psycopg.OperationalError, "connection"),
        (psycopg.errors.OutOfMemory, "error"),
        (psycopg.errors.SyntaxError, "error"),
        (psycopg.errors.QueryCanceled, "timeout"),
        (psycopg.errors.InsufficientPrivilege, "forbidden"),
    ],
)
def test_the_cause_is_told_by_the_code(error: type[psycopg.Error], cause: str) -> None:
    assert _explain(error("It failed."), Limits()).cause == cause


async def test_rows_are_capped_without_reading_the_rest(postgres_server: str) -> None:
    async with await Database.connect(
        postgres_server, limits=Limits(max_rows=10, timeout_s=20)
    ) as database:
        rows = await database.execute(
            "SELECT a.g FROM generate_series(1, 30000) AS a(g), generate_series(1, 30000) AS b(g)"
        )
        assert len(rows.rows) == 10
        assert rows.truncated


async def test_settings_do_not_outlive_their_statement(postgres_server: str) -> None:
    async with await Database.connect(postgres_server, limits=Limits(connections=1)) as database:
        await database._run("SELECT set_config('search_path', 'archive', false)")
        rows = await database._run("SELECT current_setting('search_path')")
        assert rows.rows != (("archive",),)


async def test_a_session_serves_many_statements(postgres_server: str) -> None:
    async with await Database.connect(postgres_server, limits=Limits(connections=1)) as database:
        for number in range(25):
            assert (await database.execute(f"SELECT {number}")).rows == ((number,),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; DROP TABLE customer",
        "COMMIT; DROP TABLE customer",
        "WITH gone AS (DELETE FROM customer RETURNING *) SELECT * FROM gone",
        "SELECT * INTO copy_of_customer FROM customer",
        "SELECT * FROM customer FOR UPDATE",
        "EXPLAIN ANALYZE DELETE FROM customer",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_from_bytea(0, 'x'::bytea)",
        "SELECT pg_reload_conf()",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
        "COPY customer TO '/tmp/stolen'",
        "SET default_transaction_read_only = off",
        "CREATE TABLE another (a INTEGER)",
        "VACUUM",
        "DO $$ BEGIN DELETE FROM customer; END $$",
        "SELECT nextval('order_sequence')",
    ],
)
async def test_the_database_itself_stops_what_the_guard_would(
    postgres_shop: Database, sql: str
) -> None:
    with pytest.raises(StatementRefused):
        await postgres_shop.check(sql)
    with pytest.raises(StatementFailed):
        await postgres_shop._run(sql)
    assert (await postgres_shop.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)


async def test_leaving_read_only_mode_from_inside_is_refused(postgres_shop: Database) -> None:
    with pytest.raises(StatementFailed):
        await postgres_shop._run(
            "SELECT set_config('transaction_read_only', 'off', true) FROM customer"
        )


@pytest.mark.parametrize("place", ["someone:s3cret@127.0.0.1:1/d", "127.0.0.1:1/d?password=s3cret"])
async def test_an_unreachable_server_is_named_without_its_password(place: str) -> None:
    url = f"postgresql://{place}"
    with pytest.raises(CallerMistake) as caught:
        await Database.connect(url)
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


async def test_a_password_among_the_parameters_reaches_no_record(postgres_server: str) -> None:
    async with await Database.connect(f"{postgres_server}&password=s3cret") as database:
        assert "s3cret" not in database.url
        with pytest.raises(StatementRefused):
            await database.execute("SELECT 1; SELECT 2")
        [refusal] = database.refusals
        assert "s3cret" not in refusal.database


async def test_an_account_that_no_wall_holds_is_warned_of_once(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgresql, "_warned_of", set())
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE ROLE climber LOGIN IN ROLE pg_read_server_files")
    try:
        for user, powers in (("postgres", "postgres"), ("climber", "pg_read_server_files")):
            caplog.clear()
            url = postgres_server.replace("postgres:@", f"{user}:@", 1)
            for _ in range(2):
                async with await Database.connect(url):
                    """It answers."""
            [record] = [item for item in caplog.records if item.name == postgresql.__name__]
            assert f"may act as {powers}" in record.getMessage()
            assert "GRANT SELECT" in record.getMessage()
        caplog.clear()
        async with await Database.connect(postgres_server.replace("postgres:@", "reader:@", 1)):
            assert not [item for item in caplog.records if item.name == postgresql.__name__]
    finally:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute("DROP ROLE climber")


async def test_a_plain_role_reads_no_file_even_past_the_guard(postgres_server: str) -> None:
    url = postgres_server.replace("postgres:@", "reader:@", 1)
    async with await Database.connect(url) as database:
        for sql in (
            "SELECT pg_read_file('/etc/hostname')",
            "SELECT set_config('role', 'none', true), (SELECT word FROM ts_stat("
            "'SELECT to_tsvector(pg_read_file(''/etc/hostname''))') LIMIT 1)",
        ):
            with pytest.raises(StatementFailed, match="permission denied"):
                await database._run(sql)


async def test_a_plain_role_needs_no_lowering(postgres_server: str) -> None:
    url = postgres_server.replace("postgres:@", "reader:@", 1)
    assert url != postgres_server
    async with await Database.connect(url) as database:
        assert (await database.execute("SELECT COUNT(*) FROM customer")).rows == ((3,),)


@pytest.mark.parametrize("seed", range(4))
async def test_string_literals_mean_the_same_to_the_guard_and_to_the_server(
    postgres_shop: Database, seed: int
) -> None:
    """What was a literal to the guard is that literal on the server, backslashes and all."""
    draw = random.Random(seed)
    for _ in range(60):
        body = "".join(draw.choice("\\'ab\\") for _ in range(draw.randint(0, 6)))
        sql = f"SELECT {draw.choice(['', 'E', 'e'])}'{body}'"
        try:
            checked = await postgres_shop.check(sql)
        except StatementRefused:
            continue
        try:
            raw = await postgres_shop._run(sql)
        except StatementFailed:
            raw = None
        if raw is not None:
            assert (await postgres_shop.run_checked(checked)).rows == raw.rows, sql
