"""What can go wrong with one statement, in words a person and the correcting model can use."""

from __future__ import annotations

from typing import Literal

from hexprefect.errors import HexprefectError


class StatementRefused(HexprefectError):
    """The guard refused a statement before it reached the database.

    Args:
        rule: short name of the rule that was broken, for example `one-statement`.
        problem: what in the statement broke it.
        remedy: what would pass.
    """

    def __init__(self, rule: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"Refused by the rule '{rule}': {problem}", remedy=remedy)
        self.rule = rule


class StatementFailed(HexprefectError):
    """The database could not run a statement, or was stopped while running it.

    Args:
        problem: what the database said, on one line.
        cause: `error` for the database's own complaint, `timeout` when the limit was reached,
            `forbidden` when a wall of the database stopped it, `connection` when it went away.
    """

    def __init__(
        self,
        problem: str,
        *,
        cause: Literal["error", "timeout", "forbidden", "connection"] = "error",
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem, remedy=remedy)
        self.cause = cause


class ExtractionFailed(HexprefectError):
    """A completion held no SQL statement."""
