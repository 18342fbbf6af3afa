"""Try a SQLAlchemy URL without changing anything at the other end."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from hexprefect.errors import CallerMistake

_CONNECT_LIMIT_S = 10
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""What a URL that names no driver is served with, as the store and the questions are."""


def check_url(what: str, url: SecretStr) -> None:
    """Refuse what is not a SQLAlchemy URL.

    Raises:
        ValueError: without the URL, which holds a password. (A `ValueError`, because this is called
            while a block is validated.)
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(url.get_secret_value())
    except (ArgumentError, ValueError):
        raise ValueError(
            f"The URL of the {what} is not a SQLAlchemy URL; write it like "
            "postgresql+psycopg://user:password@host/database or sqlite:////path/to/file."
        ) from None


def try_connection(what: str, url: SecretStr) -> str:
    """Connect, ask for 1, and close.

    Returns:
        The dialect that answered, for example `postgresql`.

    Raises:
        CallerMistake: no driver, no such database, or no answer; with the URL but no password.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    from hexprefect.urls import shown_url, without_secrets

    parsed = make_url(url.get_secret_value())
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    shown = shown_url(parsed)
    file = parsed.database if parsed.get_backend_name() == "sqlite" else None
    # SQLite would make an empty file out of a mistyped path.
    if file and file != ":memory:" and not file.startswith("file:") and not Path(file).is_file():
        raise CallerMistake(f"The {what} {shown} does not exist.", remedy="Correct the path.")
    patience = {"connect_timeout": _CONNECT_LIMIT_S}
    arguments = patience if parsed.get_backend_name() in ("postgresql", "mysql") else {}
    try:
        engine = create_engine(parsed, poolclass=NullPool, connect_args=arguments)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except ImportError as missing:
        raise CallerMistake(
            f"The {what} {shown} needs a driver that is not installed: {missing}.",
            remedy=f"Install {missing.name}." if missing.name else None,
        ) from missing
    except SQLAlchemyError as error:
        reason = without_secrets(str(getattr(error, "orig", None) or error).strip(), parsed)
        raise CallerMistake(
            f"The {what} {shown} does not answer: {reason}",
            remedy="Check host, port, database, user and password.",
        ) from None
    return engine.dialect.name
