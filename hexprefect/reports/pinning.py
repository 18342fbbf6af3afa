"""A question's verified SQL, kept from night to night until the schema changes.

What a model wrote for one night holds that night's dates as literals. They are put back where the
question named a parameter; a statement in which a literal may depend on the night in any other way
is not kept, and the question is asked anew. Parameters that are no dates do not move: what a
statement says because of a number or a name cannot be told, so another value is another question.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlglot
from sqlglot.tokenizer_core import Token, TokenType

_SHORTEST_FRAGMENT = 2
"""Characters from which a literal may be a part of a parameter's value: a day, a month."""

_SHORTEST_OF_DATE = 4
"""… and of a date that the question does not name: a year."""

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MAY_BE_A_DATE = re.compile(r"\d{4}|\d-\d")
"""A year, a month, a count of days or seconds since some day: all but a plain small number."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The statement that answered a question, and under what it may be used again."""

    asked: str
    """Fingerprint of the question's template, its evidence, the database and `fixed_values`."""
    sql: str
    """As it ran on the night that it was verified."""
    dialect: str
    values: Mapping[str, str]
    """What moves with the night, as it was that night: see `moving_values`."""
    tables: tuple[str, ...]
    schema: str
    """Fingerprint of those tables."""
    verified_on: str
    """The night, as an ISO date."""

    def as_record(self) -> dict[str, Any]:
        """As JSON; `from_record` is its inverse."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Pin:
        """Read what `as_record` wrote."""
        return cls(**{**record, "tables": tuple(record["tables"])})

    def sql_for(self, values: Mapping[str, str]) -> str:
        """The statement with tonight's parameters.

        Args:
            values: those that the question names, as texts.
        """
        tonight = {**_next_days(values), **values}
        new = {old: tonight[name] for name, old in self.values.items() if tonight[name] != old}
        if not new:
            return self.sql
        return _replace(self.sql, new, self.dialect)


def moving_values(values: Mapping[str, str]) -> dict[str, str]:
    """What moves with the night: the dates of the question's parameters, and the day after each.

    A model writes "on this day" as `>= day AND < day after` more often than not.
    """
    named = _days(values)
    after = {
        name: day for name, day in _next_days(values).items() if day not in set(named.values())
    }
    return {**after, **named}


def fixed_values(values: Mapping[str, str]) -> dict[str, str]:
    """The parameters for which a statement was written as they are: those that are no dates."""
    return {name: value for name, value in values.items() if name not in _days(values)}


def _days(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if _day(value) is not None}


def _next_days(values: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        day = _day(value)
        if day is not None and day < datetime.date.max:
            found[f"{name}+1"] = (day + datetime.timedelta(days=1)).isoformat()
    return found


def _day(value: str) -> datetime.date | None:
    if not _DAY.fullmatch(value):
        return None
    try:
        return datetime.date.fromisoformat(value)
    except ValueError:
        return None


def why_not_pinned(
    sql: str,
    *,
    dialect: str,
    question: str,
    values: Mapping[str, str],
    dates: Sequence[str],
) -> str | None:
    """Why a statement cannot be kept for other nights; None when it can.

    Args:
        sql: the verified statement.
        dialect: sqlglot's name of its dialect.
        question: the question's template and evidence, parameters not put in.
        values: the parameters that they name, with tonight's values.
        dates: tonight's built-in dates, as ISO texts.
    """
    named = _days(values)
    if len(set(named.values())) < len(named):
        return "two of its parameters have the same value tonight"
    literals = [token.text for token in _literals(sql, dialect)]
    for name, value in named.items():
        if not any(value in literal for literal in literals):
            return f"the value of {name} ({value}) is not written in the statement"
    moving = moving_values(values).values()
    said = " ".join((question, *fixed_values(values).values()))
    for literal in literals:
        rest = literal
        for value in sorted(moving, key=len, reverse=True):
            rest = rest.replace(value, " ")
        for piece in (found.rstrip(":-") for found in re.findall(r"\d[\d:-]*", rest)):
            depends = (
                _depends(piece, moving, _SHORTEST_FRAGMENT)
                or _depends(piece, dates, _SHORTEST_OF_DATE)
                # Another day, where one is named, may have been counted from it.
                or (named and _MAY_BE_A_DATE.search(piece))
            )
            if depends and piece not in said:
                return f"the literal {literal!r} may depend on the night"
    return None


def _depends(piece: str, nightly: Iterable[str], shortest: int) -> bool:
    """Whether a number may have been taken from one of tonight's values."""
    if len(piece) < shortest:
        return False
    return any(piece in value or value in piece for value in nightly)


def _literals(sql: str, dialect: str) -> list[Token]:
    return [
        token
        for token in sqlglot.tokenize(sql, dialect=dialect)
        if token.token_type in (TokenType.STRING, TokenType.NUMBER)
    ]


def _replace(sql: str, new: Mapping[str, str], dialect: str) -> str:
    """All at once, so that a value that became another's old one is not replaced again.

    Between the literals the text stays as it is.
    """
    pattern = re.compile("|".join(re.escape(old) for old in sorted(new, key=len, reverse=True)))
    parts, position = [], 0
    for token in _literals(sql, dialect):
        text = pattern.sub(lambda found: new[found.group()], token.text)
        if text == token.text:
            continue
        literal = sqlglot.exp.Literal.string(text).sql(dialect=dialect)
        parts += [sql[position : token.start], text if _is_number(token) else literal]
        position = token.end + 1
    return "".join([*parts, sql[position:]])


def _is_number(token: Token) -> bool:
    return bool(token.token_type == TokenType.NUMBER)
