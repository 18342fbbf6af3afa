"""Which adapter serves which database URL."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.dialects.adapter import Adapter
from hexprefect.text2sql.dialects.postgresql import PostgreSQLAdapter
from hexprefect.text2sql.dialects.sqlite import SQLiteAdapter

_adapters: dict[str, Callable[[sqlalchemy.URL], Adapter]] = {
    "sqlite": SQLiteAdapter,
    "postgresql": PostgreSQLAdapter,
    "postgres": PostgreSQLAdapter,
}


def adapter_for(url: str) -> Adapter:
    """The adapter for a SQLAlchemy database URL.

    Raises:
        CallerMistake: the URL cannot be parsed, names a kind of database that is not supported, or
            names a file that is not there.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except sqlalchemy.exc.ArgumentError as error:
        # The text itself is kept out of the message: it may hold a password.
        raise CallerMistake(
            "The database URL cannot be parsed.",
            remedy="Write it as SQLAlchemy does, for example sqlite:///shop.sqlite or "
            "postgresql://user:password@host:5432/name.",
        ) from error
    kind = parsed.drivername.partition("+")[0]
    if kind not in _adapters:
        raise CallerMistake(
            f"Databases of the kind '{kind}' are not supported.",
            remedy=f"Supported are: {', '.join(sorted(_adapters))}.",
        )
    return _adapters[kind](parsed)
