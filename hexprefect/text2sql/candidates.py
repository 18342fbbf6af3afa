"""Candidates: each writes a statement its own way, runs it, and corrects it if it must."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import anyio.to_thread

from hexprefect.completion import Prompt
from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.text2sql.correction import (
    EMPTY_RESULT,
    correction_prompt,
    describe,
)
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.effort import Effort
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.extraction import extract_sql
from hexprefect.text2sql.mending import MOST_MENDINGS, Mender, Tried
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import Schema

logger = logging.getLogger(__name__)

STAGE = "candidate_generation"


@dataclass(frozen=True, slots=True)
class Style:
    """One way to ask for a statement."""

    file: str
    temperature: float = 0.0
    max_output_tokens: int = 400


# The cheap ones first: a plan is five times as long, and the vote of the first three is the same in
# any order.
STYLES: tuple[Style, ...] = (
    Style("candidate_direct"),
    Style("candidate_direct", temperature=0.7),
    Style("candidate_plan", max_output_tokens=600),
    Style("candidate_plan", temperature=0.7, max_output_tokens=600),
)


@dataclass(frozen=True, slots=True)
class Draft:
    """One statement of a branch, as it was tried."""

    sql: str | None
    """As executed when the guard passed it, else as proposed; None when none was proposed."""
    rows: Rows | None = None
    error: str | None = None
    by: Literal["model", "repair"] = "model"
    """Who wrote it: the model, or code that put a detail of the draft before it right."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one branch came to."""

    branch: str
    sql: str | None = None
    """The last statement that passed the guard and ran, else the last one proposed."""
    rows: Rows | None = None
    """Its result; None when nothing ran."""
    corrections: int = 0
    error: str | None = None
    """Why there are no rows, in words for a person."""
    drafts: tuple[Draft, ...] = ()
    """All that it tried, in order of writing: how much its corrections gained can be measured."""

    @property
    def ran(self) -> bool:
        """Whether its statement was executed."""
        return self.rows is not None


def candidate_prompt(book: PromptBook, *, number: int, hints: str) -> Prompt:
    """The call of candidate `number`, counted from 1; each has a style of its own."""
    style = STYLES[(number - 1) % len(STYLES)]
    return book.prompt(
        STAGE,
        style.file,
        {"hints": hints},
        branch=branch_name(number),
        max_output_tokens=style.max_output_tokens,
        temperature=style.temperature,
        seed=number,
    )


def branch_name(number: int) -> str:
    """Name of the chain of calls that belongs to one candidate."""
    return f"candidate-{number}"


@dataclass(frozen=True, slots=True)
class Workbench:
    """What every candidate of a query works with."""

    database: Database
    schema: Schema
    book: PromptBook
    effort: Effort
    hints: str
    max_corrections: int

    async def develop(self, number: int) -> Candidate:
        """Generate → execute → repair → correct, until it gives rows or the corrections are spent.

        Every failure of a call or of the database ends in the candidate, never in an exception, so
        that one branch cannot take the others with it; a cancellation passes through.
        """
        candidate = Candidate(branch_name(number))
        prompt = candidate_prompt(self.book, number=number, hints=self.hints)
        best = candidate
        drafts: list[Draft] = []
        for attempt in range(self.max_corrections + 1):
            try:
                completion = await self.effort(prompt)
            except Exception as error:
                return replace(best, error=best.error or _words(error), drafts=tuple(drafts))
            candidate, problem = await self._try(candidate, completion.text)
            candidate = replace(candidate, corrections=attempt)
            drafts.append(Draft(candidate.sql, candidate.rows, candidate.error))
            for _ in range(MOST_MENDINGS):
                if (mended := await self._mend(candidate)) is None:
                    break
                drafts.append(Draft(mended.sql, mended.rows, by="repair"))
                candidate, problem = replace(mended, corrections=attempt), None
            best = _better(best, candidate)
            if problem is None or attempt == self.max_corrections:
                break
            if not self.effort.affords(f"self_correction ({candidate.branch})", calls_in_a_row=1):
                break
            prompt = correction_prompt(
                self.book,
                sql=candidate.sql or completion.text[:500],
                problem=problem,
                hints=self.hints,
                branch=candidate.branch,
                attempt=attempt + 1,
            )
        return replace(best, corrections=candidate.corrections, drafts=tuple(drafts))

    async def _try(self, before: Candidate, text: str) -> tuple[Candidate, str | None]:
        """Run what the model wrote: the new state of the candidate, and the problem if any."""
        sql = None
        try:
            sql = extract_sql(text)
            checked = await self.database.check(sql)
            rows = await self.database.run_checked(checked)
        except Exception as error:
            if not isinstance(error, HexprefectError):
                # Ours to mend, but no reason to lose the other branches.
                logger.exception("%s failed in an unforeseen way", before.branch)
                return Candidate(before.branch, sql=sql, error=_words(error)), None
            failed = Candidate(before.branch, sql=sql, error=str(error))
            if not _is_correctable(error):
                return failed, None
            # A catalogue may hold thousands of tables: looking through it is no work for the loop.
            return failed, await anyio.to_thread.run_sync(self._describe, error, sql)
        found = Candidate(before.branch, sql=checked.sql, rows=rows)
        if not rows.is_empty:
            return found, None
        # The same empty answer twice is an answer: some questions have none.
        repeated = before.ran and before.sql == found.sql
        return found, None if repeated else EMPTY_RESULT

    async def _mend(self, before: Candidate) -> Candidate | None:
        """What code makes of it without a call, when that returns rows."""
        if before.sql is None:
            return None
        mender = Mender(self.database, self.schema, self.book.question)
        mended = await mender.mend(Tried(before.sql, before.rows, before.error))
        if mended is None:
            return None
        return Candidate(before.branch, sql=mended.sql, rows=mended.rows)

    def _describe(self, error: HexprefectError, sql: str | None) -> str:
        omitted = self.book.schema.omitted_tables
        try:
            return describe(error, self.schema, sql=sql or "", omitted=omitted)
        except Exception:
            logger.exception("an error could not be explained")
            return f"It failed: {error}"


def _better(old: Candidate, new: Candidate) -> Candidate:
    """Prefer rows to an empty result, an empty result to an error, and the earlier of equals."""
    if old.rows is None:
        return new
    if new.rows is None or new.rows.is_empty:
        return old
    return new if old.rows.is_empty else old


def _is_correctable(error: HexprefectError) -> bool:
    """Another statement helps, unless it is the database that is gone."""
    if isinstance(error, StatementFailed):
        return error.cause != "connection"
    return not isinstance(error, CallerMistake)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def candidates_that_ran(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those with a result, in order of their numbers."""
    return tuple(item for item in candidates if item.ran)
