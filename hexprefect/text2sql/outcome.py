"""How a question ended: rows, a question back, what is missing, or a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hexprefect.text2sql.candidates import Candidate
from hexprefect.text2sql.linking import Links

State = Literal["answered", "failed", "abstained", "unclear"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of the query, for a progress display."""

    step: str
    """A stage, or `schema` and `done`, which need no model."""
    message: str
    fraction: float
    """How much of the expected work is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to understand a question that has several."""

    description: str
    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended. Without rows there is a reason that a person understands."""

    state: State
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
    """How sure the answer is, 0 to 1: the fraction of the candidates that gave its rows; None where
    only one was written, so that there was nothing to compare it with."""
    missing: tuple[str, ...] = ()
    """Of an abstention: what the question needs and the schema does not hold, in its own words."""
    readings: tuple[Reading, ...] = ()
    """Of an unclear question: how it can be understood."""
    from_cache: bool = False
    """Whether the same question was answered before, on the same data with the same rights."""
