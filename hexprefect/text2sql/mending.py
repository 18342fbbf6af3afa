"""What code makes of a statement before the model is asked again: it costs no call.

Each way to mend has a module of its own, with its reasons: misplaced columns (`repair`), tables
that are not there (`invented_tables`), joins that leave the key aside (`key_joins`), two values at
once (`contradiction`), spellings (`respelling`), columns that only rank (`asked_columns`), rows
that a join repeats (`repetition`). What they make is a statement like any other: it goes through
the guard, and counts only when it returns rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import anyio.to_thread

from hexprefect.errors import HexprefectError
from hexprefect.text2sql.asked_columns import without_ranking_column
from hexprefect.text2sql.contradiction import with_each_value
from hexprefect.text2sql.correction import unknown_name
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.invented_tables import without_invented_tables
from hexprefect.text2sql.key_joins import joined_by_keys
from hexprefect.text2sql.repair import repaired
from hexprefect.text2sql.repetition import has_repeated_rows, repetition
from hexprefect.text2sql.respelling import Proposal, respelled
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import Schema

logger = logging.getLogger(__name__)

MOST_MENDINGS = 4
"""Of one draft: with its column in place, a join may still leave the key aside and repeat rows."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A statement that was tried."""

    sql: str
    rows: Rows | None
    """None when it failed."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Mender:
    """Mends the statements of one question.

    Args:
        database: where they run.
        schema: the whole schema.
        question: as it was asked.
    """

    database: Database
    schema: Schema
    question: str

    async def mend(self, tried: Tried) -> Tried | None:
        """The next better statement with its rows; None where code knows of none.

        Never raises, but for a cancellation: a branch can go on without it.
        """
        try:
            for made in await anyio.to_thread.run_sync(self._proposals, tried):
                mended = await self._run(made.sql)
                if mended is not None and await self._stands_nowhere(made.absent):
                    return mended
            if tried.rows is not None and has_repeated_rows(tried.rows):
                return await self._with_each_row_once(tried)
        except Exception:
            # Ours to mend, but no reason to lose the branch: the model corrects it as well.
            logger.exception("a statement could not be mended: %s", tried.sql)
        return None

    def _proposals(self, tried: Tried) -> tuple[Proposal, ...]:
        """What could be meant, the likeliest first."""
        schema = self.schema
        if tried.rows is None:
            is_misnamed = unknown_name(tried.error or "") is not None
            ways = (repaired, without_invented_tables) if is_misnamed else ()
            made: list[str | Proposal | None] = [way(tried.sql, schema) for way in ways]
        else:
            by_keys = joined_by_keys(tried.sql, schema)
            made = [by_keys]
            if tried.rows.is_empty:
                made = [*self._other_values(tried.sql), *made]
                made += self._other_values(by_keys) if by_keys else []
            else:
                dialect = schema.dialect
                made.append(without_ranking_column(tried.sql, self.question, dialect=dialect))
        return tuple(
            item if isinstance(item, Proposal) else Proposal(item)
            for item in made
            if item is not None
        )

    def _other_values(self, sql: str) -> list[str | Proposal | None]:
        return [with_each_value(sql, self.schema), respelled(sql, self.schema)]

    async def _stands_nowhere(self, queries: Sequence[str]) -> bool:
        """Whether the database holds none of the texts that were respelt, where they were."""
        for sql in queries:
            try:
                rows = await self.database.execute(sql)
            except HexprefectError as error:
                logger.debug("whether a text is held cannot be asked: %s", error)
                return False
            if rows.rows:
                return False
        return True

    async def _run(self, sql: str) -> Tried | None:
        try:
            checked = await self.database.check(sql)
            rows = await self.database.run_checked(checked)
        except HexprefectError as error:
            logger.debug("a mended statement does not run: %s", error)
            return None
        return None if rows.is_empty else Tried(checked.sql, rows)

    async def _with_each_row_once(self, tried: Tried) -> Tried | None:
        """Without the repetitions of a join, if it is a join that repeats them."""
        found = await anyio.to_thread.run_sync(repetition, tried.sql, self.schema)
        if found is None:
            return None
        try:
            keys = await self.database.execute(found.keys)
        except HexprefectError as error:
            logger.debug("the keys cannot be counted: %s", error)
            return None
        return await self._run(found.distinct) if has_repeated_rows(keys) else None
