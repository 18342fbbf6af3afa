"""Write the demo shop into a database: a SQLite file, or any SQLAlchemy URL."""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, inspect, text

from hexprefect.demo.shop_rows import shop_rows
from hexprefect.demo.shop_schema import ORDER_TOTAL_VIEW, metadata, sqlite_ddl
from hexprefect.errors import CallerMistake
from hexprefect.urls import shown_url


def build_shop(path: str | os.PathLike[str], seed: int = 7) -> Path:
    """Write the shop as a SQLite file, replacing what is there.

    One seed gives the same file: the database is written beside `path` and moved over it when it is
    complete, so that a reader sees the old shop or the new one, and an interrupted build nothing.

    Returns:
        The path of the file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The first questions of a busy worker come together, each in a thread.
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.building")
    try:
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA foreign_keys = ON")
            with connection:
                for statement in sqlite_ddl():
                    connection.execute(statement)
                for name, rows in shop_rows(seed).items():
                    columns = ", ".join(f'"{column}"' for column in rows[0])
                    marks = ", ".join("?" for _ in rows[0])
                    connection.executemany(
                        f'INSERT INTO "{name}" ({columns}) VALUES ({marks})',
                        [[_for_sqlite(value) for value in row.values()] for row in rows],
                    )
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def load_shop(url: str, seed: int = 7) -> None:
    """Create the same tables, view and rows in the empty database at a SQLAlchemy URL.

    Written for PostgreSQL (`postgresql+psycopg://…`), where column comments become `COMMENT ON`.
    Everything is one transaction.

    Raises:
        CallerMistake: one of the shop's tables exists already.
    """
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            present = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
            if present:
                raise CallerMistake(
                    f"The database {shown_url(engine.url)} already has "
                    f"the tables {', '.join(present)}.",
                    remedy="Give an empty database or schema.",
                )
            metadata.create_all(connection)
            for name, rows in shop_rows(seed).items():
                connection.execute(metadata.tables[name].insert(), rows)
            connection.execute(text(ORDER_TOTAL_VIEW))
    finally:
        engine.dispose()


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    # NUMERIC affinity turns the text into a number without passing through a binary float here.
    return str(value) if isinstance(value, Decimal) else value
