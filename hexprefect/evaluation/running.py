"""An evaluation: every question answered, judged and kept, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from hexprefect.evaluation.answer_log import AnswerLog
from hexprefect.evaluation.causes import Cause
from hexprefect.evaluation.execution import Executor
from hexprefect.evaluation.gold_names import Names, names_in, parsed
from hexprefect.evaluation.questions import GoldQuestion
from hexprefect.evaluation.records import (
    CandidateRecord,
    DraftRecord,
    LinkingRecord,
    QuestionRecord,
    Verdict,
)
from hexprefect.evaluation.sources import AnswerSource, Attempt
from hexprefect.evaluation.verdicts import judge_statement
from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.linking import Links
from hexprefect.text2sql.schema import Schema

_NOT_RUN = frozenset(
    {
        "refused by the guard",
        "unknown table",
        "unknown column",
        "syntax error",
        "other error",
        "timeout",
        "result too large",
        "gold failed",
    }
)


async def evaluate(
    questions: Sequence[GoldQuestion],
    *,
    urls: Mapping[str, str],
    source: AnswerSource,
    executor: Executor,
    log: AnswerLog,
    at_once: int = 1,
    on_progress: Callable[[int, int, QuestionRecord | None], None] | None = None,
) -> tuple[QuestionRecord, ...]:
    """Answer and judge every question that the log does not hold yet.

    Questions of one database follow each other: their prompts share their beginning.

    Args:
        questions: which.
        urls: of their databases, by the ids of the questions.
        source: answers them.
        executor: runs gold and predicted statements.
        log: what earlier runs have finished; what finishes now is added at once.
        at_once: how many questions are asked at the same time.
        on_progress: told how many of how many are finished, and the newest.

    Returns:
        The records of all these questions, in their order.

    Raises:
        HexprefectError: the source or a database has failed; what was finished is in the log.
    """
    left = [question for question in questions if question.id not in log.records]
    left.sort(key=lambda question: urls[question.id])
    waiting = iter(left)
    tell = on_progress or _ignore
    finished = len(questions) - len(left)
    tell(finished, len(questions), None)

    async def work() -> None:
        nonlocal finished
        # All workers draw from one iterator: nobody awaits between two draws.
        for question in waiting:
            record = await _evaluated(question, urls[question.id], source, executor)
            log.keep(record)
            finished += 1
            tell(finished, len(questions), record)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(left))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise _first(failures) from failures
    return tuple(log.records[question.id] for question in questions)


def _ignore(done: int, of: int, newest: QuestionRecord | None) -> None:
    """Nobody watches."""


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _evaluated(
    question: GoldQuestion, url: str, source: AnswerSource, executor: Executor
) -> QuestionRecord:
    schema = await executor.schema(url)
    attempt = await source.answer(question, url)
    judge = _Judge(question, url, executor)
    candidates = [await _candidate(item, judge) for item in attempt.candidates]
    gold_tree = parsed(question.gold[0], schema.dialect)
    return QuestionRecord(
        id=question.id,
        db_id=question.db_id,
        question=question.question,
        gold=question.gold[0],
        joins=_count(gold_tree, exp.Join),
        nesting=max(0, _count(gold_tree, exp.Select) - 1),
        state=attempt.state,
        sql=attempt.sql,
        reason=attempt.reason,
        verdict=await _final_verdict(attempt, judge),
        seconds=attempt.seconds,
        chosen=attempt.chosen,
        voted=attempt.voted,
        confidence=attempt.confidence,
        linking=_linking(gold_tree, schema, attempt),
        candidates=tuple(candidates),
        calls=attempt.calls,
        warnings=attempt.warnings,
    )


class _Judge:
    """Judges the statements of one question, each once."""

    def __init__(self, question: GoldQuestion, url: str, executor: Executor) -> None:
        self.question = question
        self.url = url
        self.executor = executor
        self._known: dict[str | None, Verdict] = {}

    async def __call__(self, sql: str | None) -> Verdict:
        if sql not in self._known:
            self._known[sql] = await judge_statement(
                self.executor, self.url, sql, self.question.gold
            )
        return self._known[sql]


async def _candidate(candidate: Candidate, judge: _Judge) -> CandidateRecord:
    drafts = [DraftRecord(sql=item.sql, verdict=await judge(item.sql)) for item in candidate.drafts]
    final = DraftRecord(sql=candidate.sql, verdict=await judge(candidate.sql))
    return CandidateRecord(branch=candidate.branch, drafts=tuple(drafts), final=final)


async def _final_verdict(attempt: Attempt, judge: _Judge) -> Verdict:
    """Of what the user was given; without an answer, why the statements did not run."""
    held_back: dict[str, Cause] = {"abstained": "abstained", "unclear": "asked back"}
    if (cause := held_back.get(attempt.state)) is not None:
        nothing = await judge(None)
        return Verdict(cause=cause, problem=attempt.reason) if nothing.is_judged else nothing
    if attempt.sql is not None:
        return await judge(attempt.sql)
    proposed = next((item.sql for item in attempt.candidates if item.sql is not None), None)
    verdict = await judge(proposed)
    if verdict.cause in _NOT_RUN:
        # There was no answer: nothing of it is right, even where Spider's form of it would run.
        return Verdict(cause=verdict.cause, problem=verdict.problem)
    return Verdict(cause="no statement", problem=attempt.reason)


def _count(tree: exp.Expr | None, kind: type[exp.Expr]) -> int:
    return sum(1 for _ in tree.find_all(kind)) if tree is not None else 0


def _linking(gold: exp.Expr | None, schema: Schema, attempt: Attempt) -> LinkingRecord | None:
    if gold is None or attempt.links is None:
        return None
    wanted = names_in(gold, schema)
    hinted_tables, hinted_columns = wanted.recall(_hinted(attempt.links))
    shown = wanted.recall(attempt.shown) if attempt.shown is not None else (None, None)
    return LinkingRecord(
        hinted_tables=hinted_tables,
        hinted_columns=hinted_columns,
        shown_tables=shown[0],
        shown_columns=shown[1],
    )


def _hinted(links: Links) -> Names:
    columns = {item.replace('"', "").replace("`", "").casefold() for item in links.columns}
    return Names(frozenset(item.casefold() for item in links.tables), frozenset(columns))
