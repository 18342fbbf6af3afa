"""URLs of databases: what of them is a secret, and how they may be shown."""

from __future__ import annotations

import re

import sqlalchemy

from hexprefect.errors import CallerMistake

HIDDEN = "***"
_SECRET = re.compile(
    r"password|passwd|passphrase|pwd|token|secret|credential|api_?key|access_?key|private_?key"
    r"|client_key|server_key|odbc_connect"
)
_PLACE = re.compile(r"(?:file|path|_dir)$")
"""The end of a key that names where a secret is kept, as libpq's `passfile`."""
_QUOTED = "%2A%2A%2A"
"""`HIDDEN` as a URL's query writes it."""


def holds_secret(url: sqlalchemy.URL) -> bool:
    """Whether a URL has a password, or a secret among its parameters."""
    return bool(secrets_of(url))


def secrets_of(url: sqlalchemy.URL) -> tuple[str, ...]:
    """The secrets in a URL, as they are."""
    found = [str(url.password)] if url.password else []
    for key, value in url.query.items():
        if _is_secret(key):
            found += [value] if isinstance(value, str) else value
    return tuple(item for item in found if item)


def shown_url(url: sqlalchemy.URL) -> str:
    """A URL as messages, logs and records may show it: without what is secret."""
    query = {key: HIDDEN if _is_secret(key) else value for key, value in url.query.items()}
    shown = url.set(query=query).render_as_string(hide_password=True)
    return shown.replace(_QUOTED, HIDDEN)


def without_secrets(message: str, url: sqlalchemy.URL) -> str:
    """What a driver said, without the secrets of the URL that it may have echoed."""
    # The longest first: one may be a part of another.
    for secret in sorted(secrets_of(url), key=len, reverse=True):
        message = message.replace(secret, HIDDEN)
    return message


def is_url(database: str) -> bool:
    """Whether the name of a database is a URL, and not of a block or a variable."""
    return "://" in database or database.startswith("sqlite:")


def refuse_secrets(database: str) -> None:
    """Refuse what must not become a parameter of a flow run: Prefect keeps and shows those.

    Args:
        database: the `database` parameter of a flow.

    Raises:
        CallerMistake: it is a URL with a password or another secret in it, or no URL at all.
    """
    if not is_url(database):
        return
    try:
        parsed = sqlalchemy.make_url(database.strip())
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # What it says may hold a part of a password.
        raise CallerMistake(
            "The database URL cannot be read.",
            remedy="Write it as sqlite:////absolute/path.sqlite or postgresql://user@host/name.",
        ) from None
    if holds_secret(parsed):
        raise CallerMistake(
            f"The database URL {shown_url(parsed)} holds a password or another secret, "
            "which would be kept with the flow run.",
            remedy="Put it into a Text2SQLDatabase block and give the block's name, or into a "
            "variable where the flow runs and give env:VARIABLE.",
        )


def _is_secret(key: str) -> bool:
    name = key.lower().replace("-", "_")
    return bool(_SECRET.search(name)) and not _PLACE.search(name)
