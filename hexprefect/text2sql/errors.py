"""What can go wrong with one statement, in words a person and the correcting model can use."""

from __future__ import annotations

from typing import Literal

from hexprefect.errors import HexprefectError

_PROBLEM_CHARACTERS = 400


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

    Databases quote cells in their complaints, and what is said here goes into prompts: so it is one
    line, without control characters, and not long.

    Args:
        problem: what the database said.
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
        super().__init__(_one_line(problem), remedy=remedy)
        self.cause = cause


class ExtractionFailed(HexprefectError):
    """A completion held no SQL statement."""


def _one_line(text: str) -> str:
    # Only so much is looked at: the text may be a cell of many megabytes.
    shown = "".join(item if item.isprintable() else " " for item in text[: 4 * _PROBLEM_CHARACTERS])
    line = " ".join(shown.split())
    return line if len(line) <= _PROBLEM_CHARACTERS else f"{line[:_PROBLEM_CHARACTERS]}…"
