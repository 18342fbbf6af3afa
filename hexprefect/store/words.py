"""Free text and JSON in the store: whatever somebody wrote or reckoned, it must not fail to save.

SQLite takes any text of any length. PostgreSQL refuses the character NUL and what is longer than
the column, and neither can encode half of a surrogate pair. JSON has no NaN and no infinity, though
Python writes them: PostgreSQL refuses those, too. A transition that failed for the words
of an error would leave its request running for ever, so words are fitted to their column here.
Names, which are compared, are not: those that do not fit are refused where they come in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Dialect, String, Text, TypeDecorator

from hexprefect.errors import CallerMistake

NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class Words(TypeDecorator[str]):
    """Text for a person to read, of any length."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What goes into the column."""
        return None if value is None else storable(value)


class ShortWords(TypeDecorator[str]):
    """As `Words`, shortened to the length of the column in characters."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What goes into the column."""
        return None if value is None else storable(value)[: self.length]


def storable(text: str) -> str:
    """The text with a sign in place of each character that a database cannot keep."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", NO_CHARACTER).encode("utf-8", "replace").decode("utf-8")


def storable_json(value: Any) -> str:
    """A value as JSON, with `null` in place of each number that JSON does not have."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def check_name(what: str, name: str | None, *, most: int, least: int = 0) -> None:
    """Refuse a name that its column cannot hold as it is.

    Args:
        what: what is named, for the error.
        name: `None` passes.
        most: characters that the column holds.
        least: characters that it needs, beside spaces.

    Raises:
        CallerMistake: it does not fit, or holds a character that a database cannot keep.
    """
    if name is None:
        return
    if len(name.strip()) < least:
        raise CallerMistake(f"The name of the {what} is empty.", remedy="Give it one.")
    if len(name) > most:
        raise CallerMistake(
            f"The {what} {name[:40]!r}… has {len(name)} characters.",
            remedy=f"Use at most {most}.",
        )
    if storable(name) != name:
        raise CallerMistake(
            f"The {what} {name!r} holds a character that a database cannot keep.",
            remedy="Leave out NUL and half surrogate pairs.",
        )
