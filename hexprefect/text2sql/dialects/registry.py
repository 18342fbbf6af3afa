"""Which adapter serves which database URL."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.dialects.adapter import Adapter

_MODULES = {
    "sqlite": ("sqlite", "SQLiteAdapter", None),
    "postgresql": ("postgresql", "PostgreSQLAdapter", None),
    "postgres": ("postgresql", "PostgreSQLAdapter", None),
    "duckdb": ("duckdb", "DuckDBAdapter", "duckdb"),
    "mysql": ("mysql", "MySQLAdapter", "pymysql"),
    "mariadb": ("mysql", "MySQLAdapter", "pymysql"),
}
"""Kind in a URL → module of this package, class, and the driver to install for it."""


def adapter_for(url: str) -> Adapter:
    """The adapter for a SQLAlchemy database URL.

    Raises:
        CallerMistake: the URL cannot be parsed, names a kind of database that is not supported or
            whose driver is not installed, or names a file that is not there.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # The text itself is kept out of the message: it may hold a password.
        raise CallerMistake(
            "The database URL cannot be parsed.",
            remedy="Write it as SQLAlchemy does, for example sqlite:///shop.sqlite or "
            "postgresql://user:password@host:5432/name.",
        ) from None
    kind = parsed.drivername.partition("+")[0]
    if kind not in _MODULES:
        raise CallerMistake(
            f"Databases of the kind '{kind}' are not supported.",
            remedy=f"Supported are: {', '.join(sorted(_MODULES))}.",
        )
    return _adapter_class(kind)(parsed)


def _adapter_class(kind: str) -> Callable[[sqlalchemy.URL], Adapter]:
    """Imported when it is first needed: a driver that nobody uses is not loaded."""
    module, name, driver = _MODULES[kind]
    try:
        found: Callable[[sqlalchemy.URL], Adapter] = getattr(
            import_module(f"hexprefect.text2sql.dialects.{module}"), name
        )
    except ImportError as missing:
        raise CallerMistake(
            f"Databases of the kind '{kind}' need a driver that is not installed: {missing}.",
            remedy=f"Install {driver}." if driver else None,
        ) from missing
    return found
