"""Outcomes to test with."""

from __future__ import annotations

from typing import Any

from hexprefect.reports.outcome import ItemOutcome, ReportOutcome
from hexprefect.text2sql.encoding import encode_rows


def item(columns: str = "n", *rows: tuple[Any, ...], **changed: Any) -> ItemOutcome:
    """An answered item with these rows."""
    names = tuple(columns.split())
    types, encoded = encode_rows(rows, columns=len(names))
    values: dict[str, Any] = {
        "key": "item",
        "title": "Item",
        "state": "answered",
        "sql": "SELECT 1",
        "source": "pinned SQL",
        "columns": names,
        "types": types,
        "rows": encoded,
        **changed,
    }
    return ItemOutcome(**values)


def report(*items: ItemOutcome, **changed: Any) -> ReportOutcome:
    """A report of these items."""
    values: dict[str, Any] = {
        "name": "shop",
        "title": "The shop",
        "database": "demo",
        "date": "2026-12-01",
        "timezone": "Europe/Berlin",
        "due_at": 1_796_000_000.0,
        "started_at": 1_795_999_000.0,
        "ended_at": 1_795_999_500.0,
        "items": items,
        **changed,
    }
    return ReportOutcome(**values)
