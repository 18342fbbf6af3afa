"""Errors a person can act on: each names what was wrong and the way out."""

from __future__ import annotations


class HexprefectError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        problem: what is wrong, naming the offending input.
        remedy: what the reader can do about it.
    """

    def __init__(self, problem: str, *, remedy: str | None = None) -> None:
        super().__init__(problem if remedy is None else f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


class CallerMistake(HexprefectError):
    """The request itself cannot be served: unknown tenant, unreachable database, nonsense SLO."""


class NoAnswer(HexprefectError):
    """The question was understood as a request, but no checked SQL came out of it."""
