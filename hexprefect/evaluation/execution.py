"""Running gold and predicted statements for a comparison: read-only, with hard limits, remembered.

A comparison needs whole results. One that passes a limit is therefore an outcome of its own and is
never compared by its first rows.
"""

from __future__ import annotations

import base64
import decimal
import json
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import Field
from pydantic.dataclasses import dataclass as validated_dataclass

from hexprefect.evaluation.open_databases import OpenDatabases
from hexprefect.evaluation.semantics import NAN, Row
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.guard import CheckedStatement
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import Schema

_LONGEST_VALUE = 32_000_000
_KEPT_RESULTS = 512
_KEPT_CELLS = 10_000
"""A larger result is not kept: it is run again where it is needed again."""

Trouble = Literal["refused", "error", "timeout", "too large"]


@validated_dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLimits:
    """How much one statement may take, before its outcome is that it took too much.

    Raises:
        pydantic.ValidationError: a limit is not positive.
    """

    timeout_s: float = Field(default=30.0, gt=0)
    """Of a prediction; 30 s is what BIRD's evaluator gives."""
    gold_timeout_s: float = Field(default=120.0, gt=0)
    max_rows: int = Field(default=200_000, gt=0)
    max_bytes: int = Field(default=256_000_000, gt=0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one statement: its rows, or why there are none."""

    rows: tuple[Row, ...] | None = None
    """Values as the driver gave them, for Python to compare."""
    trouble: Trouble | None = None
    problem: str | None = None
    """In words, where there are no rows."""
    rule: str | None = None
    """Of the guard, where it refused."""


class Executor:
    """Runs statements for a comparison. Use it as an async context manager.

    Predictions go through the guard, as in production. Gold statements come from whoever evaluates
    and may use what the guard does not know; they are only held by the database's own walls, which
    make every session read-only.
    """

    def __init__(self, limits: ExecutionLimits | None = None) -> None:
        self.limits = limits or ExecutionLimits()
        self._databases = OpenDatabases()
        self._known: OrderedDict[tuple[str, bool, str], Outcome] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._databases.__aexit__(kind, error, trace)

    async def schema(self, url: str) -> Schema:
        """The catalogue of a database.

        Raises:
            CallerMistake: the database cannot be opened or read.
        """
        return await (await self._database(url, is_gold=False)).schema()

    async def predicted(self, url: str, sql: str) -> Outcome:
        """Run a prediction.

        Raises:
            CallerMistake: the database cannot be opened or read.
        """
        return await self._remembered(url, sql, is_gold=False)

    async def gold(self, url: str, sql: str) -> Outcome:
        """Run a gold statement, which has longer.

        Raises:
            CallerMistake: the database cannot be opened.
        """
        return await self._remembered(url, sql, is_gold=True)

    async def _remembered(self, url: str, sql: str, *, is_gold: bool) -> Outcome:
        key = (url, is_gold, sql)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        database = await self._database(url, is_gold=is_gold)
        outcome = await _run(database, sql, is_gold=is_gold)
        if sum(len(row) for row in outcome.rows or ()) <= _KEPT_CELLS:
            self._known[key] = outcome
            while len(self._known) > _KEPT_RESULTS:
                self._known.popitem(last=False)
        return outcome

    async def _database(self, url: str, *, is_gold: bool) -> Database:
        timeout_s = self.limits.gold_timeout_s if is_gold else self.limits.timeout_s
        limits = Limits(
            timeout_s=timeout_s,
            max_rows=self.limits.max_rows,
            max_bytes=self.limits.max_bytes,
            max_value_characters=_LONGEST_VALUE,
        )
        return await self._databases.at(url, limits=limits)


async def _run(database: Database, sql: str, *, is_gold: bool) -> Outcome:
    try:
        if is_gold:
            statement = CheckedStatement(sql.strip().rstrip(";"), (), False)
            rows = await database.run_checked(statement)
        else:
            rows = await database.execute(sql)
    except StatementRefused as refused:
        return Outcome(trouble="refused", problem=str(refused), rule=refused.rule)
    except StatementFailed as failed:
        trouble: Trouble = "timeout" if failed.cause == "timeout" else "error"
        return Outcome(trouble=trouble, problem=failed.problem)
    if rows.truncated:
        return Outcome(trouble="too large", problem="; ".join(rows.notes))
    return Outcome(rows=plain_rows(rows))


def plain_rows(rows: Rows) -> tuple[Row, ...]:
    """The values of a result for Python to compare: what the JSON encoding made text, undone.

    A text and bytes that are encoded alike, and a decimal and the text of it, are different again.
    JSON values become their text, so that a row can be an element of a set.
    """
    return tuple(
        tuple(_plain(value, kind) for value, kind in zip(row, rows.types, strict=True))
        for row in rows.rows
    )


def _plain(value: Any, kind: str) -> Any:
    if kind == "mixed" and isinstance(value, dict):
        return _plain(value["value"], str(value["type"]))
    match kind, value:
        case "bytes", str():
            return base64.b64decode(value)
        case "decimal" | "number", str() if value.lstrip("-") in ("NaN", "sNaN"):
            return NAN
        case "decimal", str():
            return decimal.Decimal(value)
        case "number", str():
            return float(value)
        case _, dict() | list():
            return json.dumps(value, sort_keys=True, ensure_ascii=False)
    return value
