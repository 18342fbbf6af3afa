"""Reports: questions and pinned SQL in a YAML file become one document, night after night.

This room knows neither Prefect nor the store: it is given a database and something that answers a
question. `hexprefect.orchestration.report` runs it in a flow.
"""

from __future__ import annotations

from hexprefect.reports.file import Item, Report
from hexprefect.reports.outcome import ItemOutcome, ReportOutcome
from hexprefect.reports.reading import ReportMistake, read_report

__all__ = ["Item", "ItemOutcome", "Report", "ReportMistake", "ReportOutcome", "read_report"]
