"""How much one statement may take: time, rows, bytes and the length of a value."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on every statement that runs on a database.

    The defaults suit an interactive question: a result that a person reads, not an export.

    Raises:
        pydantic.ValidationError: a bound is not positive.
    """

    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds a statement may run before the database itself is told to stop."""
    max_rows: int = Field(default=1_000, gt=0)
    max_bytes: int = Field(default=4_000_000, gt=0)
    """Size of all cells together; reading stops at the row that passes it."""
    max_value_characters: int = Field(default=10_000, gt=0)
    """Longer texts and byte strings are cut to this length, and the result says so."""
    connections: int = Field(default=4, gt=0)
    """Statements that run at once; the others wait their turn."""
