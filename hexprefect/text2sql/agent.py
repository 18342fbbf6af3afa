"""The agent: one question in, checked SQL and its rows out.

It knows neither Prefect nor the queue. It is given something that completes a prompt, and says with
each prompt which stage and which branch of the query it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import anyio.to_thread
from pydantic import Field
from pydantic.dataclasses import dataclass as validated_dataclass

from hexprefect.completion import Complete
from hexprefect.errors import CallerMistake
from hexprefect.text2sql.candidates import (
    Candidate,
    Workbench,
    branch_name,
    candidates_that_ran,
)
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.effort import Effort
from hexprefect.text2sql.judging import Cluster, cluster_by_rows, contenders, judge
from hexprefect.text2sql.linking import Links, link_by_model, link_by_words, rank_tables
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import render_schema
from hexprefect.text2sql.schema import Schema

_MAX_QUESTION_CHARACTERS = 4_000


@validated_dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How much effort a question may cost.

    Raises:
        pydantic.ValidationError: a number is out of its range.
    """

    candidates: int = Field(default=2, ge=1, le=8)
    max_corrections: int = Field(default=2, ge=0, le=5)
    """Corrections of each candidate after an error or an empty result."""
    judge: bool = True
    """Whether a judge is asked when candidates disagree; else the largest group is taken."""
    linking_from_tables: int = Field(default=5, ge=1)
    """A schema with fewer tables is read whole by the model anyway: no linking call."""
    schema_token_budget: int = Field(default=6_000, ge=200)
    """Estimated tokens of the schema in a prompt; what does not fit is named as left out."""
    expected_call_s: float = Field(default=5.0, gt=0)
    """Seconds a call is taken to need until the query has seen its first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of the query, for a progress display."""

    step: str
    """A stage, or `schema` and `done`, which need no model."""
    message: str
    fraction: float
    """How much of the expected work is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended. A failed one has no rows and a reason that a person understands."""

    state: Literal["answered", "failed"]
    sql: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    types: tuple[str, ...] = ()
    truncated: bool = False
    candidates: tuple[Candidate, ...] = ()
    dropped_work: tuple[str, ...] = ()
    """Optional work left out for want of time, each with its reason."""
    warnings: tuple[str, ...] = ()
    reason: str | None = None
    links: Links | None = None
    """What the question was linked to; None when it ended before."""
    chosen: str | None = None
    """The branch that the answer comes from."""
    voted: str | None = None
    """The branch that the plain vote by result would have taken, before any judging."""
    confidence: float | None = None
    """How sure the answer is, 0 to 1: the fraction of the candidates that gave its rows."""


async def answer(
    question: str,
    *,
    database: Database,
    complete: Complete,
    options: AgentOptions | None = None,
    evidence: str = "",
    time_left: Callable[[], float] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Answer:
    """Answer one question with checked SQL.

    Args:
        question: in any language the model understands.
        database: where the answer is.
        complete: serves a prompt.
        options: how much effort it may cost.
        evidence: what else is known about the question's words, for example a glossary.
        time_left: seconds to the deadline; asked before each piece of optional work.
        on_progress: told of each step; must not block.

    Returns:
        The answer, also when there is none: then `state` is `failed` and `reason` says why.

    Raises:
        CallerMistake: the question is empty or far too long, or the database cannot be read.
    """
    _check_question(question)
    options = options or AgentOptions()
    effort = Effort(complete, time_left, options.expected_call_s)
    query = _Query(question, evidence, database, options, effort, on_progress or _ignore)
    return await query.answer()


def _ignore(progress: Progress) -> None:
    """Nobody watches."""


def _check_question(question: str) -> None:
    if not question.strip():
        raise CallerMistake("The question is empty.", remedy="Ask something.")
    if len(question) > _MAX_QUESTION_CHARACTERS:
        raise CallerMistake(
            f"The question has {len(question)} characters.",
            remedy=f"Ask it in at most {_MAX_QUESTION_CHARACTERS}.",
        )


class _Query:
    """The state of one question while it is answered."""

    def __init__(
        self,
        question: str,
        evidence: str,
        database: Database,
        options: AgentOptions,
        effort: Effort,
        tell: Callable[[Progress], None],
    ) -> None:
        self.question = question
        self.evidence = evidence
        self.database = database
        self.options = options
        self.effort = effort
        self.tell = tell
        self.warnings: list[str] = []

    async def answer(self) -> Answer:
        self.tell(Progress("schema", f"Reading the schema of {self.database.url}", 0.0))
        schema = await self.database.schema()
        if not schema.tables:
            return self._failed((), "The database has no table or view that this user can read.")
        links, book = await self._link(schema)
        workbench = Workbench(
            self.database,
            schema,
            book,
            self.effort,
            links.hints(),
            self.options.max_corrections,
        )
        self.tell(Progress("candidate_generation", "Writing candidates", 0.3))
        candidates = await self._develop(workbench)
        ran = candidates_that_ran(candidates)
        if not ran:
            return self._failed(candidates, _why_nothing_ran(candidates), links)
        clusters = contenders(cluster_by_rows(ran))
        chosen = await self._choose(book, clusters)
        self.tell(Progress("done", f"Answered with {chosen.representative.branch}", 1.0))
        return self._answered(candidates, chosen, clusters[0], links)

    async def _link(self, schema: Schema) -> tuple[Links, PromptBook]:
        """Link by words always, by model when it is worth a call; then fix the prompts' schema."""
        links, book = await anyio.to_thread.run_sync(self._link_by_words, schema)
        if len(schema.tables) >= self.options.linking_from_tables and self.effort.affords(
            "schema_linking", calls_in_a_row=3
        ):
            self.tell(Progress("schema_linking", "Linking the question to the schema", 0.1))
            try:
                links = await link_by_model(book, schema, self.effort)
            except Exception as error:
                self.warnings.append(f"Schema linking gave nothing: {error}")
            else:
                # The same schema text keeps its place in the instances' prefix caches: it is only
                # changed for a table that is needed and was left out.
                if set(links.tables) & set(book.schema.omitted_tables):
                    book = await anyio.to_thread.run_sync(self._book, schema, links)
        omitted = len(book.schema.omitted_tables)
        if omitted:
            self.warnings.append(
                f"The schema is larger than the model was shown: {omitted} of "
                f"{len(schema.tables)} tables, the least relevant by words, were left out."
            )
        return links, book

    def _link_by_words(self, schema: Schema) -> tuple[Links, PromptBook]:
        """Builds the schema's indexes the first time, which takes seconds on a large one."""
        links = link_by_words(self.question, schema)
        return links, self._book(schema, links)

    def _book(self, schema: Schema, links: Links) -> PromptBook:
        budget = self.options.schema_token_budget
        rendered = render_schema(schema, token_budget=budget)
        if rendered.omitted_tables:
            words = f"{self.question} {self.evidence}"
            ranking = rank_tables(words, schema, linked=links.tables)
            rendered = render_schema(schema, token_budget=budget, ranking=ranking)
        return PromptBook(schema.dialect, rendered, self.question, self.evidence)

    async def _develop(self, workbench: Workbench) -> tuple[Candidate, ...]:
        """All candidates at once; those still at work when time is up are given up."""
        numbers = [1]
        for number in range(2, self.options.candidates + 1):
            # The first must be written in any case; the next cost time only where they queue.
            if self.effort.affords(
                f"candidate_generation ({branch_name(number)})", calls_in_a_row=2
            ):
                numbers.append(number)
        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(workbench.develop(number)) for number in numbers]
            unfinished = await self._wait(branches)
            for branch in unfinished:
                branch.cancel()
        return tuple(
            Candidate(branch_name(number), error="given up: the time was up")
            if branch.cancelled()
            else branch.result()
            for number, branch in zip(numbers, branches, strict=True)
        )

    async def _wait(self, branches: list[asyncio.Task[Candidate]]) -> set[asyncio.Task[Candidate]]:
        """Wait for all; once one has rows, only as long as there is time."""
        pending = set(branches)
        while pending:
            has_rows = any(task.done() and task.result().ran for task in branches)
            left = self.effort.seconds_left
            if has_rows and left <= 0:
                count = len(pending)
                self.effort.dropped.append(
                    f"candidate_generation: {count} unfinished at the deadline"
                )
                return pending
            timeout = left if has_rows and left != float("inf") else None
            _, pending = await asyncio.wait(
                pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        return pending

    async def _choose(self, book: PromptBook, clusters: tuple[Cluster, ...]) -> Cluster:
        """The only cluster, else the judge's, else the largest."""
        first = clusters[0]
        if len(clusters) == 1 or not self.options.judge:
            return first
        if not self.effort.affords("judge", calls_in_a_row=1):
            return first
        self.tell(Progress("judge", f"Judging {len(clusters)} different results", 0.8))
        try:
            return await judge(book, clusters, self.effort)
        except Exception as error:
            self.warnings.append(f"The judge gave no verdict, the first result was taken: {error}")
            return first

    def _answered(
        self, candidates: tuple[Candidate, ...], cluster: Cluster, voted: Cluster, links: Links
    ) -> Answer:
        chosen = cluster.representative
        rows = chosen.rows
        assert rows is not None, "only candidates that ran are chosen from"
        return Answer(
            "answered",
            sql=chosen.sql,
            columns=rows.columns,
            rows=rows.rows,
            types=rows.types,
            truncated=rows.truncated,
            candidates=candidates,
            dropped_work=tuple(self.effort.dropped),
            warnings=(*self.warnings, *rows.notes),
            links=links,
            chosen=chosen.branch,
            voted=voted.representative.branch,
            confidence=round(len(cluster.candidates) / len(candidates), 3),
        )

    def _failed(
        self, candidates: tuple[Candidate, ...], reason: str, links: Links | None = None
    ) -> Answer:
        self.tell(Progress("done", reason, 1.0))
        return Answer(
            "failed",
            candidates=candidates,
            dropped_work=tuple(self.effort.dropped),
            warnings=tuple(self.warnings),
            reason=reason,
            links=links,
        )


def _why_nothing_ran(candidates: tuple[Candidate, ...]) -> str:
    """One sentence a branch; the same failure of several is said once."""
    said: dict[str, list[str]] = {}
    for item in candidates:
        said.setdefault(item.error or "no statement was written", []).append(item.branch)
    parts = [f"{' and '.join(branches)}: {error}" for error, branches in said.items()]
    return "No candidate produced a statement that ran. " + " ".join(parts)
