"""What became of a report and of each of its items; written to the archive as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Record = dict[str, Any]
ItemState = Literal["answered", "doubtful", "failed"]
ReportState = Literal["complete", "partial", "failed"]
Source = Literal["pinned SQL", "kept SQL", "a model"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An expectation that was checked."""

    check: str
    """What was expected, in words."""
    met: bool
    detail: str = ""
    """What was found instead."""


@dataclass(frozen=True, slots=True)
class Change:
    """A result against that of an earlier run."""

    since: str
    """The date of the earlier report."""
    summary: str
    details: tuple[str, ...] = ()
    """Single rows that came, went or changed, the first few."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What became of one item. `doubtful`: there are rows, but they are not as was expected."""

    key: str
    title: str
    state: ItemState
    question: str | None = None
    sql: str | None = None
    source: Source | None = None
    """Where the statement came from."""
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    """Encoded as `hexprefect.text2sql.encoding` says."""
    truncated: bool = False
    took_s: float = 0.0
    reason: str | None = None
    """Why it failed, in words for a person."""
    findings: tuple[Finding, ...] = ()
    change: Change | None = None
    notes: tuple[str, ...] = ()
    flow_run_id: str | None = None
    fingerprint: str = ""
    """Of what was asked: a run of the same night keeps an outcome whose fingerprint is the same."""

    @property
    def has_rows(self) -> bool:
        """Whether there is something to show."""
        return self.state != "failed"

    @property
    def unmet(self) -> tuple[Finding, ...]:
        """The expectations that do not hold."""
        return tuple(finding for finding in self.findings if not finding.met)

    def as_record(self) -> Record:
        """As JSON; `from_record` is its inverse."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ItemOutcome:
        """Read what `as_record` wrote; fields of other versions are left out."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        change = values.get("change")
        for name in ("columns", "types", "notes"):
            values[name] = tuple(values.get(name) or ())
        return replace(
            cls(**values),
            rows=tuple(tuple(row) for row in values.get("rows") or ()),
            findings=tuple(Finding(**finding) for finding in values.get("findings") or ()),
            change=None
            if change is None
            else Change(change["since"], change["summary"], tuple(change["details"])),
        )


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """A report of one night."""

    name: str
    title: str
    database: str
    """As it may be shown."""
    date: str
    """The night, as an ISO date in the report's time zone."""
    timezone: str
    due_at: float
    """Epoch seconds."""
    started_at: float
    ended_at: float
    items: tuple[ItemOutcome, ...]

    @property
    def state(self) -> ReportState:
        """Complete, partial when an item failed or is doubtful, failed when no item has rows."""
        if not any(item.has_rows for item in self.items):
            return "failed"
        whole = all(item.state == "answered" for item in self.items)
        return "complete" if whole else "partial"

    @property
    def in_time(self) -> bool:
        """Whether it was ready when it was due."""
        return self.ended_at <= self.due_at

    def of_state(self, state: ItemState) -> tuple[ItemOutcome, ...]:
        """The items that ended so."""
        return tuple(item for item in self.items if item.state == state)

    @property
    def message(self) -> str:
        """The outcome in one sentence."""
        count = len(self.items)
        failed, doubtful = self.of_state("failed"), self.of_state("doubtful")
        if not failed and not doubtful:
            return f"All {count} items answered" if count != 1 else "The item was answered"
        parts = []
        if failed:
            names = ", ".join(item.title for item in failed)
            parts.append(f"{len(failed)} of {count} items failed: {names}")
        if doubtful:
            names = ", ".join(item.title for item in doubtful)
            parts.append(f"{len(doubtful)} of {count} items are not as expected: {names}")
        return "; ".join(parts)

    def as_record(self) -> Record:
        """As JSON; `from_record` is its inverse."""
        return {**asdict(self), "state": self.state, "message": self.message}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ReportOutcome:
        """Read what `as_record` wrote."""
        known = {field.name for field in fields(cls)} - {"items"}
        values = {name: value for name, value in record.items() if name in known}
        items = tuple(ItemOutcome.from_record(item) for item in record["items"])
        return cls(**values, items=items)


def summary_rows(outcome: ReportOutcome) -> list[Record]:
    """One row for each item, for a table."""
    return [
        {
            "item": item.title,
            "state": item.state,
            "rows": len(item.rows) if item.has_rows else None,
            "seconds": round(item.took_s, 1),
            "SQL from": item.source,
            "change": None if item.change is None else item.change.summary,
            "reason": item.reason or "; ".join(_unmet(item)) or None,
            "flow run": item.flow_run_id,
        }
        for item in outcome.items
    ]


def _unmet(item: ItemOutcome) -> list[str]:
    return [f"{finding.check}: {finding.detail}" for finding in item.unmet]
