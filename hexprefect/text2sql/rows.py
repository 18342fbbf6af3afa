"""The result of one statement, and the caps under which it is collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hexprefect.text2sql.encoding import encode_rows
from hexprefect.text2sql.limits import Limits


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Stands for a value that was left where it is, since no result can hold it."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A result, encoded as `hexprefect.text2sql.encoding` describes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    types: tuple[str, ...] = ()
    truncated: bool = False
    """Whether a cap kept something back; `notes` says which and how much."""
    elapsed_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """No row at all, or only rows of NULLs: what an unmatched filter looks like.

        A result whose first row was too large to be shown is none.
        """
        if self.truncated and not self.rows:
            return False
        return all(value is None for row in self.rows for value in row)


@dataclass(slots=True)
class RowCollector:
    """Takes rows from a driver until a cap is reached.

    `add` answers whether more rows are wanted; the driver is never asked for more than one row
    past the cap, which is how a truncated result is told from one that ends exactly there.
    """

    limits: Limits
    columns: tuple[str, ...] = ()
    _rows: list[tuple[object, ...]] = field(default_factory=list)
    _bytes: int = 0
    _cut_values: int = 0
    _stopped_by: str | None = None

    def add(self, row: Sequence[object]) -> bool:
        """Take one row; False when no further row will be taken."""
        if len(self._rows) >= self.limits.max_rows:
            self._stopped_by = f"only the first {self.limits.max_rows} rows are shown"
            return False
        kept = tuple(self._cut(value) for value in row)
        self._bytes += sum(_size(value) for value in kept)
        if self._bytes > self.limits.max_bytes:
            self._stopped_by = (
                f"only the first {len(self._rows)} rows are shown: "
                f"more would pass {self.limits.max_bytes} bytes"
                if self._rows
                else f"no row is shown: the first alone passes {self.limits.max_bytes} bytes"
            )
            return False
        self._rows.append(kept)
        return True

    @property
    def wanted(self) -> int:
        """How many further rows are of use: those up to the cap, and one past it."""
        return 0 if self._stopped_by else self.limits.max_rows + 1 - len(self._rows)

    def finish(self, *, elapsed_s: float) -> Rows:
        """The collected result."""
        types, rows = encode_rows(self._rows, columns=len(self.columns))
        notes = [self._stopped_by] if self._stopped_by else []
        if self._cut_values:
            limit = self.limits.max_value_characters
            notes.append(f"{self._cut_values} values were cut to {limit} characters")
        return Rows(
            columns=self.columns,
            rows=rows,
            types=types,
            truncated=bool(notes),
            elapsed_s=elapsed_s,
            notes=tuple(notes),
        )

    def _cut(self, value: object) -> object:
        limit = self.limits.max_value_characters
        if isinstance(value, str | bytes) and len(value) > limit:
            self._cut_values += 1
            return value[:limit]
        return value


def _size(value: object) -> int:
    match value:
        case None | bool() | int() | float():
            return 8
        case str():
            return len(value.encode("utf-8", "surrogatepass"))
        case bytes():
            return len(value)
        case TooLarge():
            return value.bytes
        case _:
            return len(str(value))
