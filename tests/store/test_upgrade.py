"""`hexprefect store upgrade`: from nothing to this version, any number of times, by anybody."""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, inspect, select

from hexprefect.errors import CallerMistake
from hexprefect.store import StoreNotReady, tables, upgrade
from hexprefect.store.engine import open_engine, store_url
from hexprefect.store.upgrade import VERSION_TABLE, newest_revision, require_current


@pytest.fixture
def engine(empty_store_url):
    engine = open_engine(empty_store_url)
    yield engine
    engine.dispose()


def test_an_empty_database_gets_all_tables_and_the_default_tenant(empty_store_url, engine):
    assert upgrade(empty_store_url) == newest_revision()
    assert {*tables.metadata.tables, VERSION_TABLE} == set(inspect(engine).get_table_names())
    with engine.connect() as connection:
        assert connection.execute(select(tables.tenants.c.name)).scalars().all() == ["default"]
    require_current(engine)


def test_the_migrations_make_exactly_the_tables_of_the_code(empty_store_url, engine):
    upgrade(empty_store_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, tables.metadata) == []


def test_the_check_constraints_are_those_of_the_code(empty_store_url, engine):
    """Alembic does not compare them."""
    upgrade(empty_store_url)
    found = inspect(engine)
    for table in tables.metadata.sorted_tables:
        wanted = {
            constraint.name
            for constraint in table.constraints
            if isinstance(constraint, CheckConstraint)
        }
        named = {entry["name"] for entry in found.get_check_constraints(table.name)}
        assert named == wanted, table.name


def test_a_second_upgrade_changes_nothing(empty_store_url, engine):
    upgrade(empty_store_url)
    with engine.connect() as connection, connection.begin():
        connection.execute(tables.tenants.update().values(default_slo_s=7.0))
    upgrade(empty_store_url)
    with engine.connect() as connection:
        rows = connection.execute(select(tables.tenants.c.default_slo_s)).scalars().all()
    assert rows == [7.0]


def test_many_processes_may_upgrade_at_once(empty_store_url, engine):
    program = "import sys; from hexprefect.store import upgrade; print(upgrade(sys.argv[1]))"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, empty_store_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    ended = [(process.communicate(timeout=120), process.returncode) for process in started]
    assert [(out.strip(), code) for (out, _), code in ended] == [(newest_revision(), 0)] * 4, ended
    require_current(engine)


def test_a_store_without_tables_says_what_to_do(engine):
    with pytest.raises(StoreNotReady, match=r"has no tables yet.*hexprefect store upgrade"):
        require_current(engine)


def test_a_store_of_an_older_version_says_what_to_do(empty_store_url, engine):
    upgrade(empty_store_url)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0001'")
    with pytest.raises(StoreNotReady, match=r"revision 0001.*needs.*hexprefect store upgrade"):
        require_current(engine)


def test_a_store_of_a_newer_version_is_not_sent_to_upgrade(empty_store_url, engine):
    upgrade(empty_store_url)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreNotReady, match=r"revision 9999, of a newer.*Install the version"):
        require_current(engine)
    with pytest.raises(StoreNotReady, match=r"revision 9999, of a newer.*Install the version"):
        upgrade(empty_store_url)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://u@h/d", "cannot live in 'mysql'"),
        ("no url at all", "cannot be read"),
    ],
)
def test_urls_of_other_kinds_are_refused(url, complaint):
    with pytest.raises(CallerMistake, match=complaint):
        store_url(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_is_refused(url):
    with pytest.raises(CallerMistake, match="cannot be in memory"):
        open_engine(url)


def test_a_new_file_may_lie_in_a_new_folder(tmp_path):
    upgrade(f"sqlite:///{tmp_path / 'deep' / 'er' / 'store.sqlite'}")
    assert (tmp_path / "deep" / "er" / "store.sqlite").exists()
