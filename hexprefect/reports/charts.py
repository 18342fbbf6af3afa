"""Declared charts drawn with matplotlib. Titles and labels are data: never mathtext, never code."""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hexprefect.errors import CallerMistake
from hexprefect.reports.expectations import column_values
from hexprefect.reports.file import Chart
from hexprefect.reports.numbers import as_number, shown_cell
from hexprefect.reports.outcome import ItemOutcome

MOST_POINTS = 400
"""Rows that are drawn: with more of them nothing can be read off a bar chart."""

COLOURS = ("#2563eb", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#64748b")
INK = "#475569"

_LARGEST = 1e300
"""Beyond it an axis has no end that a float holds."""

_LONGEST_LABEL = 24
_MOST_LABELS = 24
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# matplotlib's settings are of the whole process.
_drawing = threading.Lock()


def draw(chart: Chart, outcome: ItemOutcome, *, format: Literal["png", "svg"] = "png") -> bytes:
    """A chart of an item's rows, 800 by 360 points.

    Raises:
        CallerMistake: a column is not there, or holds other things than numbers that can be drawn.
    """
    labels = _column(outcome, chart.x)[:MOST_POINTS]
    series = {name: _numbers(outcome, name)[:MOST_POINTS] for name in chart.y}
    if not labels:
        raise CallerMistake("There are no rows to draw.")
    settings: Any = {
        "text.parse_math": False,
        "svg.hashsalt": "hexprefect",
        "font.size": 9,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with _drawing, mpl.rc_context(settings):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        # Without a date the same rows give the same file.
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        content = io.BytesIO()
        try:
            _draw_series(axes, chart, [_short(label) for label in labels], labels, series)
            axes.set_title(_writable(chart.title or ""), color=INK, fontsize=10)
            if len(series) > 1:
                axes.legend(frameon=False)
            figure.savefig(content, format=format, dpi=110, metadata=metadata)
        except (ArithmeticError, ValueError) as error:
            # What matplotlib cannot do is no reason to lose the report.
            raise CallerMistake(f"It cannot be drawn: {error}.") from error
    return content.getvalue()


def _draw_series(
    axes: Any,
    chart: Chart,
    shown: Sequence[str],
    labels: Sequence[Any],
    series: dict[str, list[float]],
) -> None:
    series = {_writable(name): values for name, values in series.items()}
    places = list(range(len(shown)))
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(series))]
    axes.set_axisbelow(True)
    if chart.kind == "scatter":
        axes.grid(color="#e2e8f0")
        numbers = [as_number(label) for label in labels]
        numeric = all(number is not None for number in numbers)
        across = [float(number or 0) for number in numbers] if numeric else places
        for (name, values), colour in zip(series.items(), colours, strict=True):
            axes.scatter(across, values, s=18, color=colour, label=name, alpha=0.8)
        axes.set_xlabel(_writable(chart.x))
        if not numeric:
            _label(axes.set_xticks, places, shown)
        return
    flat = chart.kind == "horizontal_bar"
    axes.grid(axis="x" if flat else "y", color="#e2e8f0")
    base = [0.0] * len(places)
    width = 0.8 if chart.stacked else 0.8 / len(series)
    for index, ((name, values), colour) in enumerate(zip(series.items(), colours, strict=True)):
        offset = 0.0 if chart.stacked else (index - (len(series) - 1) / 2) * width
        beside = [place + offset for place in places]
        match chart.kind:
            case "bar":
                axes.bar(beside, values, width, bottom=base, color=colour, label=name)
            case "horizontal_bar":
                axes.barh(beside, values, width, left=base, color=colour, label=name)
            case "area":
                top = [low + value for low, value in zip(base, values, strict=True)]
                axes.fill_between(places, base, top, color=colour, alpha=0.6, label=name)
            case _:
                axes.plot(places, values, color=colour, marker="o", markersize=3, label=name)
        if chart.stacked:
            base = [low + value for low, value in zip(base, values, strict=True)]
    _label(axes.set_yticks if flat else axes.set_xticks, places, shown)
    if flat:
        axes.invert_yaxis()
    if len(series) == 1:
        name = next(iter(series))
        (axes.set_xlabel if flat else axes.set_ylabel)(name)


def _label(set_ticks: Any, places: list[int], shown: Sequence[str]) -> None:
    step = max(1, -(-len(places) // _MOST_LABELS))
    crowded = sum(map(len, shown[::step])) > 90
    flat = set_ticks.__name__ == "set_yticks"
    rotation = {"rotation": 35, "ha": "right"} if crowded and not flat else {}
    set_ticks(places[::step], list(shown[::step]), **rotation)


def _column(outcome: ItemOutcome, name: str) -> list[Any]:
    values = column_values(outcome, name)
    if values is None:
        raise CallerMistake(
            f"The chart needs the column {name!r}, which the result does not have.",
            remedy=f"It has: {', '.join(outcome.columns)}.",
        )
    return list(values)


def _numbers(outcome: ItemOutcome, name: str) -> list[float]:
    found = []
    for value in _column(outcome, name):
        number = as_number(value)
        if number is None and value is not None:
            raise CallerMistake(
                f"The chart draws {name!r}, which holds {shown_cell(value)[:40]!r}: no number.",
                remedy="Draw a column of numbers.",
            )
        found.append(math.nan if number is None else float(number))
        if abs(found[-1]) > _LARGEST:
            raise CallerMistake(f"The chart draws {name!r}, which holds too large a number.")
    return found


def _short(label: Any) -> str:
    text = _writable(shown_cell(label))
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _writable(text: str) -> str:
    """Text that an SVG can hold: a browser shows nothing at all of one with other characters."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
