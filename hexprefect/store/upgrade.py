"""`hexprefect store upgrade`: bring a store's tables to this version, from none if need be."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, insert, select, text

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.engine import open_engine
from hexprefect.store.outages import told_as_unavailable

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "hexprefect_schema_version"
UPGRADE_LOCK = 0x48455855
DEFAULT_TENANT = "default"


class StoreNotReady(CallerMistake):
    """The store cannot be used, or its tables are missing or of another version."""


def upgrade(url: str) -> str:
    """Create or migrate the tables, and enter the tenant `default`.

    Safe to call from many processes at once: one does the work, the others find it done.

    Returns:
        The revision that the store has now.

    Raises:
        StoreNotReady: when a newer version has made its tables.
        StoreUnavailable: when its database cannot be reached or written.
    """
    engine = open_engine(url)
    try:
        with told_as_unavailable(engine.url):
            return upgrade_engine(engine)
    finally:
        engine.dispose()


def upgrade_engine(engine: Engine) -> str:
    """`upgrade` on an open engine."""
    with engine.connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        found = _revision(connection)
        if found is not None and not _is_known(found):
            raise _newer(found)
        if found != newest_revision():
            configuration = _configuration()
            configuration.attributes["connection"] = connection
            command.upgrade(configuration, "head")
        _enter_default_tenant(connection)
        return str(_revision(connection))


def require_current(engine: Engine) -> None:
    """Check that the store can be used by this version.

    Raises:
        StoreNotReady: when its tables are missing, older or newer.
        StoreUnavailable: when its database cannot be reached.
    """
    with told_as_unavailable(engine.url), engine.connect() as connection:
        found = _revision(connection)
    wanted = newest_revision()
    if found is not None and not _is_known(found):
        raise _newer(found)
    if found != wanted:
        what = "has no tables yet" if found is None else f"has the tables of revision {found}"
        raise StoreNotReady(
            f"The store {what}; this version needs revision {wanted}.",
            remedy="Run `hexprefect store upgrade`.",
        )


def _is_known(revision: str) -> bool:
    scripts = ScriptDirectory.from_config(_configuration())
    return any(script.revision == revision for script in scripts.walk_revisions())


def _newer(revision: str) -> StoreNotReady:
    return StoreNotReady(
        f"The store has the tables of revision {revision}, of a newer version than this one, which "
        f"needs revision {newest_revision()}.",
        remedy="Install the version that made them; tables are not taken back.",
    )


def newest_revision() -> str:
    """The revision that this version of the package needs."""
    head = ScriptDirectory.from_config(_configuration()).get_current_head()
    if head is None:
        raise StoreNotReady("The package has no migrations.", remedy="Install it again.")
    return head


def _configuration() -> Config:
    configuration = Config()
    configuration.set_main_option("script_location", str(MIGRATIONS))
    return configuration


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _enter_default_tenant(connection: Connection) -> None:
    tenant = tables.tenants.c.name
    known = connection.execute(select(tenant).where(tenant == DEFAULT_TENANT)).first()
    if known is None:
        connection.execute(
            insert(tables.tenants), [{"name": DEFAULT_TENANT, "enabled": True, "created_at": 0.0}]
        )
