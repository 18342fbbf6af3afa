"""Names as a dialect wants them written: quoted exactly where they must be."""

from __future__ import annotations

import re
from functools import cache

import sqlalchemy

_PLAIN = {
    # SQLite ignores case in names; PostgreSQL lowers a name that is not quoted.
    "sqlite": re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z"),
    "postgres": re.compile(r"[a-z_][a-z0-9_]*\Z"),
}
_SQLALCHEMY_NAMES = {"sqlite": "sqlite", "postgres": "postgresql"}


@cache
def reserved_words(dialect: str) -> frozenset[str]:
    """Words that cannot name a column or table without quotes, in lower case."""
    kind = sqlalchemy.make_url(f"{_SQLALCHEMY_NAMES[dialect]}://").get_dialect()
    return frozenset(kind().identifier_preparer.reserved_words)


def must_be_quoted(name: str, dialect: str) -> bool:
    """Whether a name means itself only in quotes."""
    return not _PLAIN[dialect].match(name) or name.lower() in reserved_words(dialect)


def quoted(name: str, dialect: str) -> str:
    """The name as SQL, with quotes only where they are needed."""
    if not must_be_quoted(name, dialect):
        return name
    return '"' + name.replace('"', '""') + '"'


def words_of(name: str) -> list[str]:
    """The words in an identifier: `Song_release_year` and `songReleaseYear` give three each."""
    spaced = re.sub(r"(?<=[a-zß-ÿ0-9])(?=[A-ZÀ-Þ])|[\W_]+", " ", name)
    return spaced.lower().split()
