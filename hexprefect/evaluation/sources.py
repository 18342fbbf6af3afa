"""Where answers come from: somebody's predictions, or the agent in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from hexprefect.completion import Complete
from hexprefect.evaluation.gold_names import Names
from hexprefect.evaluation.metering import Meter
from hexprefect.evaluation.open_databases import OpenDatabases
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.evaluation.records import CallRecord
from hexprefect.text2sql import AgentOptions, answer
from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.linking import Links


@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer before anybody has judged it, with as much as its source tells."""

    state: str
    sql: str | None = None
    reason: str | None = None
    seconds: float = 0.0
    candidates: tuple[Candidate, ...] = ()
    chosen: str | None = None
    voted: str | None = None
    confidence: float | None = None
    links: Links | None = None
    shown: Names | None = None
    calls: tuple[CallRecord, ...] = ()
    warnings: tuple[str, ...] = ()


class AnswerSource(Protocol):
    """Something that answers the questions of an evaluation."""

    async def answer(self, question: GoldQuestion, url: str) -> Attempt:
        """Answer one question of the database at `url`.

        Raises:
            HexprefectError: the source itself has failed; a question that has no answer is an
                attempt of the state `failed`.
        """
        ...


class Predictions:
    """Statements that are there already."""

    def __init__(self, statements: Mapping[str, str | None]) -> None:
        self.statements = statements

    async def answer(self, question: GoldQuestion, url: str) -> Attempt:
        """The prediction for a question; `failed` where there is none."""
        sql = self.statements.get(question.id)
        if sql is None:
            return Attempt("failed", reason="The file has no prediction for this question.")
        return Attempt("answered", sql=sql)


class Agent:
    """The project's agent in this process. Use it as an async context manager.

    Args:
        complete: serves its calls.
        options: how much effort a question may cost.
    """

    def __init__(self, complete: Complete, options: AgentOptions | None = None) -> None:
        self.complete = complete
        self.options = options or AgentOptions()
        self._databases = OpenDatabases()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._databases.__aexit__(kind, error, trace)

    async def answer(self, question: GoldQuestion, url: str) -> Attempt:
        """Ask the agent.

        Raises:
            InstanceUnavailable: a call found no instance; the question says nothing of the agent.
            CallerMistake: the database cannot be opened or read.
        """
        database = await self._databases.at(url)
        meter = Meter(self.complete)
        started = time.monotonic()
        found = await answer(
            question.question,
            database=database,
            complete=meter,
            options=self.options,
            evidence=question.evidence,
        )
        seconds = time.monotonic() - started
        if meter.unavailable is not None:
            raise meter.unavailable
        return Attempt(
            state=found.state,
            sql=found.sql,
            reason=found.reason,
            seconds=round(seconds, 3),
            candidates=found.candidates,
            chosen=found.chosen,
            voted=found.voted,
            confidence=found.confidence,
            links=found.links,
            shown=meter.shown,
            calls=tuple(meter.calls),
            warnings=found.warnings,
        )
