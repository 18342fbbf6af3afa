"""The agent: one question in, checked SQL and its rows out.

It knows neither Prefect nor the queue. It is given something that completes a prompt, and says with
each prompt which stage and which branch of the query it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio.to_thread

from hexprefect.completion import Complete
from hexprefect.errors import CallerMistake
from hexprefect.text2sql.abstention import is_doubtful, missing_words, unmatched_words
from hexprefect.text2sql.answer_cache import answer_cache, cache_key
from hexprefect.text2sql.candidates import Candidate, Workbench, candidates_that_ran
from hexprefect.text2sql.clarification import describe_readings, has_several_readings
from hexprefect.text2sql.database import Database
from hexprefect.text2sql.development import develop_candidates
from hexprefect.text2sql.effort import Effort
from hexprefect.text2sql.judging import judge
from hexprefect.text2sql.linking import Links, link_by_model, link_by_words, rank_tables
from hexprefect.text2sql.options import AgentOptions
from hexprefect.text2sql.outcome import Answer, Progress, Reading, State
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import render_schema
from hexprefect.text2sql.schema import Schema
from hexprefect.text2sql.unit_tests import STAGE as UNIT_TEST_STAGE
from hexprefect.text2sql.unit_tests import write_unit_tests
from hexprefect.text2sql.voting import Cluster, cluster_by_rows, contenders

_MAX_QUESTION_CHARACTERS = 4_000


async def answer(
    question: str,
    *,
    database: Database,
    complete: Complete,
    options: AgentOptions | None = None,
    evidence: str = "",
    time_left: Callable[[], float] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    model: str = "",
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
        model: what serves the prompts; an answer of another is not given again.

    Returns:
        The answer, also when there is none: then `state` is `failed`, `abstained` (the schema does
        not hold what is asked for) or `unclear` (there are several readings), and `reason` says
        why.

    Raises:
        CallerMistake: the question is empty or far too long, or the database cannot be read.
    """
    _check_question(question)
    options = options or AgentOptions()
    effort = Effort(complete, time_left, options.expected_call_s)
    query = _Query(question, evidence, database, options, effort, on_progress or _ignore)
    return await query.answer_once(model)


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

    async def answer_once(self, model: str) -> Answer:
        """The answer, or the one that was given before if the options allow it."""
        self.tell(Progress("schema", f"Reading the schema of {self.database.url}", 0.0))
        schema = await self.database.schema()
        key = None
        if self.options.reuse_answers_s:
            key = await cache_key(
                self.question,
                self.evidence,
                database=self.database,
                schema=schema,
                options=self.options,
                model=model,
            )
        if key and (known := answer_cache.find(key, within_s=self.options.reuse_answers_s)):
            self.tell(Progress("done", "Answered as before", 1.0))
            return known
        found = await self.answer(schema)
        if key:
            answer_cache.keep(key, found)
        return found

    async def answer(self, schema: Schema) -> Answer:
        """Link, write candidates, choose."""
        if not schema.tables:
            return self._without_rows(
                "failed", "The database has no table or view that this user can read."
            )
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
        candidates = await develop_candidates(workbench, self.options)
        clusters = contenders(cluster_by_rows(candidates_that_ran(candidates)))
        if missing := await self._missing(book, schema, links, candidates, clusters):
            return self._abstained(candidates, links, missing)
        if not clusters:
            return self._without_rows("failed", _why_nothing_ran(candidates), candidates, links)
        if readings := await self._readings(book, candidates, clusters):
            return self._unclear(candidates, links, readings)
        chosen = await self._choose(book, clusters)
        if chosen.is_empty:
            await self._say_what_is_unknown(schema, links)
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
        return PromptBook(
            schema.dialect,
            rendered,
            self.question,
            self.evidence,
            worked_examples=self.options.worked_examples,
        )

    async def _choose(self, book: PromptBook, clusters: tuple[Cluster, ...]) -> Cluster:
        """The only cluster, else what the options say; without time for that, the vote's."""
        selection = self.options.selection
        if len(clusters) == 1 or selection == "vote":
            return clusters[0]
        stage = "judge" if selection == "judge" else UNIT_TEST_STAGE
        if not self.effort.affords(stage, calls_in_a_row=1):
            return clusters[0]
        self.tell(Progress(stage, f"Choosing between {len(clusters)} different results", 0.8))
        try:
            if selection == "judge":
                return await judge(book, clusters, self.effort)
            return (await write_unit_tests(book, self.effort)).choose(clusters)
        except Exception as error:
            self.warnings.append(f"The {stage} gave no verdict, the vote was taken: {error}")
            return clusters[0]

    async def _missing(
        self,
        book: PromptBook,
        schema: Schema,
        links: Links,
        candidates: tuple[Candidate, ...],
        clusters: tuple[Cluster, ...],
    ) -> tuple[str, ...]:
        """What the question needs and the schema lacks; asked only where something says so."""
        if not self.options.abstain or not is_doubtful(candidates, clusters, schema):
            return ()
        words = await anyio.to_thread.run_sync(
            unmatched_words, self.question, self.evidence, schema, links
        )
        if not words or not self.effort.affords("judge (answerability)", calls_in_a_row=1):
            return ()
        self.tell(Progress("judge", "Checking whether the schema can answer this", 0.8))
        try:
            return await missing_words(book, words, self.effort)
        except Exception as error:
            self.warnings.append(f"Whether the schema can answer this is not known: {error}")
            return ()

    async def _say_what_is_unknown(self, schema: Schema, links: Links) -> None:
        """Words of the question that may be why no row was found."""
        words = await anyio.to_thread.run_sync(
            unmatched_words, self.question, self.evidence, schema, links
        )
        if words:
            self.warnings.append(
                "No row was found. Neither the schema nor the values that were read of it have: "
                f"{', '.join(words)}."
            )

    async def _readings(
        self, book: PromptBook, candidates: tuple[Candidate, ...], clusters: tuple[Cluster, ...]
    ) -> tuple[Reading, ...]:
        """The readings to offer, when the question has several and the options ask for that."""
        if not self.options.clarify or not has_several_readings(
            clusters, candidates=len(candidates)
        ):
            return ()
        if not self.effort.affords("judge (readings)", calls_in_a_row=1):
            return ()
        self.tell(Progress("judge", f"Describing {len(clusters)} readings", 0.9))
        try:
            return await describe_readings(book, clusters, self.effort)
        except Exception as error:
            self.warnings.append(f"The readings could not be put into words: {error}")
            return ()

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
            confidence=_agreement(cluster, candidates),
        )

    def _abstained(
        self, candidates: tuple[Candidate, ...], links: Links, missing: tuple[str, ...]
    ) -> Answer:
        named = ", ".join(missing)
        reason = f"The question needs what this database does not hold: {named}."
        ended = self._without_rows("abstained", reason, candidates, links)
        return replace(ended, missing=missing)

    def _unclear(
        self, candidates: tuple[Candidate, ...], links: Links, readings: tuple[Reading, ...]
    ) -> Answer:
        offered = " Or: ".join(reading.description for reading in readings)
        reason = f"The question can be understood in {len(readings)} ways. {offered}"
        ended = self._without_rows("unclear", reason, candidates, links)
        return replace(ended, readings=readings)

    def _without_rows(
        self,
        state: State,
        reason: str,
        candidates: tuple[Candidate, ...] = (),
        links: Links | None = None,
    ) -> Answer:
        self.tell(Progress("done", reason, 1.0))
        return Answer(
            state,
            candidates=candidates,
            dropped_work=tuple(self.effort.dropped),
            warnings=tuple(self.warnings),
            reason=reason,
            links=links,
        )


def _agreement(cluster: Cluster, candidates: Sequence[Candidate]) -> float | None:
    """The fraction of the candidates that gave these rows; one alone agrees with nobody."""
    if len(candidates) < 2:
        return None
    return round(len(cluster.candidates) / len(candidates), 3)


def _why_nothing_ran(candidates: tuple[Candidate, ...]) -> str:
    """One sentence a branch; the same failure of several is said once."""
    said: dict[str, list[str]] = {}
    for item in candidates:
        said.setdefault(item.error or "no statement was written", []).append(item.branch)
    parts = [f"{' and '.join(branches)}: {error}" for error, branches in said.items()]
    return "No candidate produced a statement that ran. " + " ".join(parts)
