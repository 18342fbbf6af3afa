"""What is kept of an evaluated question: one JSON object a line, read again by later runs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from hexprefect.evaluation.causes import Cause

Measure = Literal["bird_ex", "spider_execution", "spider_keep_distinct"]
"""The measures that say right or wrong. Soft F1 is a number and stands beside them."""

MEASURES: tuple[Measure, ...] = ("bird_ex", "spider_execution", "spider_keep_distinct")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Verdict(_Record):
    """One statement against the gold of its question, by every measure."""

    bird_ex: bool = False
    bird_soft_f1: float = 0.0
    spider_execution: bool = False
    """As Spider's evaluator does by default: every DISTINCT is left out of both statements."""
    spider_keep_distinct: bool = False
    """As Spider's evaluator does with `--keep_distinct`."""
    cause: Cause = "right"
    """Why it is not right by every measure."""
    problem: str | None = None
    """What the database or the guard said."""

    @property
    def is_judged(self) -> bool:
        """False where no gold statement ran: then nothing is known of the prediction."""
        return self.cause != "gold failed"

    def right(self, measure: Measure) -> bool:
        """By one of the measures."""
        return bool(getattr(self, measure))


class DraftRecord(_Record):
    """One statement of a candidate; None when the model wrote none."""

    sql: str | None
    verdict: Verdict


class CandidateRecord(_Record):
    """One branch: all its drafts, and what it came to."""

    branch: str
    drafts: tuple[DraftRecord, ...]
    final: DraftRecord


class CallRecord(_Record):
    """What one call of the model cost."""

    stage: str
    branch: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """From sending it to its answer; waiting for a free instance is not in it."""
    from_cache: bool = False
    """Whether it was paid for by an earlier run, which took these seconds."""


class LinkingRecord(_Record):
    """Shares of the gold statement's tables and columns."""

    hinted_tables: float
    hinted_columns: float
    shown_tables: float | None = None
    """In the schema of the prompts; None when no prompt could be read."""
    shown_columns: float | None = None


class QuestionRecord(_Record):
    """How one question ended."""

    id: str
    db_id: str
    question: str
    gold: str
    joins: int
    """Of the gold statement."""
    nesting: int
    """Of the gold statement: queries within it, and parts of UNION, EXCEPT, INTERSECT beyond 1."""
    state: str
    """`answered`, `failed`, `abstained` or `unclear`, as the agent says."""
    sql: str | None
    reason: str | None = None
    verdict: Verdict
    seconds: float = 0.0
    """From asking to the answer; shorter than it would be where calls came from a cache."""
    chosen: str | None = None
    voted: str | None = None
    confidence: float | None = None
    linking: LinkingRecord | None = None
    candidates: tuple[CandidateRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    warnings: tuple[str, ...] = ()

    def candidate(self, branch: str | None) -> CandidateRecord | None:
        """The candidate of a branch."""
        return next((item for item in self.candidates if item.branch == branch), None)
