"""A night's files: the document, its text form, and the rows of each item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hexprefect.errors import CallerMistake
from hexprefect.reports.archive import DOCUMENT, NightFolder
from hexprefect.reports.charts import draw
from hexprefect.reports.file import Report, ResultFormat
from hexprefect.reports.html import report_html
from hexprefect.reports.markdown import report_markdown
from hexprefect.reports.outcome import ItemOutcome, ReportOutcome
from hexprefect.reports.results import csv_bytes, parquet_bytes

_WRITERS: Mapping[ResultFormat, Callable[[ItemOutcome], bytes]] = {
    "csv": csv_bytes,
    "parquet": parquet_bytes,
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a night has left."""

    outcome: ReportOutcome
    """With a note on every chart or file that could not be made."""
    document: Path
    html: str
    markdown: str
    pictures: Mapping[str, bytes]
    """PNG of each chart by the item's key."""


def write_report(report: Report, outcome: ReportOutcome, folder: NightFolder) -> Written:
    """Write everything; a chart or file that cannot be made is noted on its item."""
    vector: dict[str, bytes] = {}
    pixels: dict[str, bytes] = {}
    files: dict[str, tuple[str, ...]] = {}
    items: list[ItemOutcome] = []
    written: set[Path] = set()
    for described, item in zip(report.items, outcome.items, strict=True):
        notes = []
        if described.chart is not None and item.rows:
            try:
                vector[item.key] = draw(described.chart, item, format="svg")
                pixels[item.key] = draw(described.chart, item, format="png")
            except CallerMistake as mistake:
                notes.append(f"No chart: {mistake}")
        for kind in report.results if item.has_rows else ():
            try:
                content = _WRITERS[kind](item)
            except CallerMistake as mistake:
                notes.append(f"No {kind} file: {mistake}")
                continue
            name = f"results/{item.key}.{kind}"
            written.add(folder.write(name, content))
            files[item.key] = (*files.get(item.key, ()), name)
        new = tuple(note for note in notes if note not in item.notes)
        items.append(replace(item, notes=(*item.notes, *new)))
    outcome = replace(outcome, items=tuple(items))
    folder.remove_results(written)
    html = report_html(outcome, charts=vector, results=files)
    markdown = report_markdown(outcome)
    document = folder.write(DOCUMENT, html.encode("utf-8", "replace"))
    folder.write("report.md", markdown.encode("utf-8", "replace"))
    return Written(outcome, document, html, markdown, pixels)
