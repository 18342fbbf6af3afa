"""A report as one HTML file that needs nothing else: no script, no network, charts inside."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import jinja2

from hexprefect.reports.markdown import shown_time
from hexprefect.reports.numbers import NUMERIC_TYPES, shown_cell
from hexprefect.reports.outcome import ReportOutcome
from hexprefect.reports.sql_layout import format_sql

MOST_ROWS = 500
"""Rows of one item in the document; its result file has them all."""


def report_html(
    outcome: ReportOutcome,
    *,
    charts: Mapping[str, bytes],
    results: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """The whole report.

    Args:
        outcome: what became of each item.
        charts: SVG by the item's key.
        results: names of the result files beside the document, by the item's key.
    """
    return _template().render(
        report=outcome,
        charts={key: _data_url(svg, "image/svg+xml") for key, svg in charts.items()},
        results=results or {},
        ready=shown_time(outcome.ended_at, outcome),
        due=shown_time(outcome.due_at, outcome),
        cell=shown_cell,
        numeric=NUMERIC_TYPES,
        most_rows=MOST_ROWS,
        format_sql=format_sql,
    )


def png_url(png: bytes) -> str:
    """A picture as a URL that holds it."""
    return _data_url(png, "image/png")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("hexprefect.reports").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def _data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
