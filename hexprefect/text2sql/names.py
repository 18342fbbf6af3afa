"""Names as a dialect wants them written: quoted exactly where they must be."""

from __future__ import annotations

import re
import string
from functools import cache

import sqlalchemy
from sqlglot import exp

_ANY_CASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLAIN = {
    # SQLite, DuckDB and MySQL keep the case of a name; PostgreSQL lowers one without quotes.
    "sqlite": _ANY_CASE,
    "duckdb": _ANY_CASE,
    "mysql": _ANY_CASE,
    "postgres": re.compile(r"[a-z_][a-z0-9_]*\Z"),
}
_SQLALCHEMY_NAMES = {"sqlite": "sqlite", "postgres": "postgresql", "mysql": "mysql"}
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@cache
def reserved_words(dialect: str) -> frozenset[str]:
    """Words that cannot name a column or table without quotes, in lower case."""
    if dialect == "duckdb":
        # Imported here: the driver is only loaded where a DuckDB file is asked.
        from hexprefect.text2sql.dialects.duckdb_catalogue import duckdb_reserved_words

        return duckdb_reserved_words()
    kind = sqlalchemy.make_url(f"{_SQLALCHEMY_NAMES[dialect]}://").get_dialect()
    return frozenset(kind().identifier_preparer.reserved_words)


def same_name(identifier: exp.Identifier, name: str, *, is_quoted: bool, dialect: str) -> bool:
    """Whether an identifier means the name that a statement gave to something of its own.

    As the database compares, never more loosely: a name that only looks the same belongs to
    something else, which must be checked on its own.
    """
    asked = identifier.name
    if dialect == "postgres":
        asked = asked if identifier.args.get("quoted") else asked.lower()
        return asked == (name if is_quoted else name.lower())
    if dialect == "mysql":
        # Depends on the server's lower_case_table_names; the same spelling always matches.
        return asked == name
    return asked.translate(_ASCII_LOWER) == name.translate(_ASCII_LOWER)


def must_be_quoted(name: str, dialect: str) -> bool:
    """Whether a name means itself only in quotes."""
    return not _PLAIN[dialect].match(name) or name.lower() in reserved_words(dialect)


def quoted(name: str, dialect: str) -> str:
    """The name as SQL, with quotes only where they are needed."""
    if not must_be_quoted(name, dialect):
        return name
    quote = "`" if dialect == "mysql" else '"'
    return quote + name.replace(quote, quote * 2) + quote


def words_of(name: str) -> list[str]:
    """The words in an identifier: `Song_release_year` and `songReleaseYear` give three each."""
    spaced = re.sub(r"(?<=[a-zß-ÿ0-9])(?=[A-ZÀ-Þ])|[\W_]+", " ", name)
    return spaced.lower().split()
