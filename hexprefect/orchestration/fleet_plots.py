"""The fleet's figures as tables and plots."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from hexprefect.orchestration.fleet_figures import FleetFigures
from hexprefect.reports.charts import draw
from hexprefect.reports.file import Chart
from hexprefect.reports.markdown import markdown_table, markdown_text
from hexprefect.reports.outcome import ItemOutcome
from hexprefect.text2sql.encoding import encode_rows


def fleet_markdown(figures: FleetFigures) -> str:
    """The figures as tables."""
    since, until = (_moment(moment) for moment in (figures.since, figures.until))
    lines = [f"# The fleet, {since} to {until} UTC", "", markdown_text(f"{figures.summary}."), ""]
    lines += ["## Instances", ""]
    lines += markdown_table(
        ("instance", "pool", "finished", "not", "busy", "waited P95", "ran/predicted"),
        [
            (
                one.instance,
                one.pool,
                one.finished,
                one.not_finished,
                _percent(one.utilisation),
                _seconds(one.waited_p95_s),
                "" if one.ran_over_predicted is None else f"{one.ran_over_predicted:.2f}",
            )
            for one in figures.instances
        ],
    )
    lines += ["", "## Tenants", ""]
    lines += markdown_table(
        ("tenant", "answered", "failed", "in time", "P50", "P95"),
        [
            (
                one.tenant,
                one.answered,
                one.failed,
                _percent(one.attainment),
                _seconds(one.p50_s),
                _seconds(one.p95_s),
            )
            for one in (*figures.tenants, figures.whole)
        ],
    )
    total_s = sum(one.ran_s for one in figures.stages) or 1.0
    lines += ["", "## Cost by stage", ""]
    lines += markdown_table(
        ("stage", "requests", "instance seconds", "share", "input tokens", "cached", "output"),
        [
            (
                one.stage,
                one.requests,
                f"{one.ran_s:.1f}",
                _percent(one.ran_s / total_s),
                one.input_tokens,
                one.cached_tokens,
                one.output_tokens,
            )
            for one in figures.stages
        ],
    )
    return "\n".join(lines)


def fleet_plots(figures: FleetFigures) -> dict[str, tuple[str, bytes]]:
    """`(title, PNG)` of each plot, by its name."""
    width = (figures.until - figures.since) / len(figures.waiting_over_time)
    bins = range(len(figures.waiting_over_time))
    times = [_moment(figures.since + width * index) for index in bins]
    plots = {}
    busy = {one.instance: one.busy_over_time for one in figures.instances if one.finished}
    if busy:
        plots["utilisation"] = _over_time("Requests on each instance", times, busy, kind="area")
    plots["queue"] = _over_time(
        "Requests that wait", times, {"waiting": figures.waiting_over_time}, kind="line"
    )
    attained = [(one.tenant, 100 * one.attainment) for one in figures.tenants
                if one.attainment is not None]  # fmt: skip
    if attained:
        plots["attainment"] = _bars("In time by tenant, %", "tenant", "%", attained)
    cost = [(one.stage, one.ran_s) for one in figures.stages]
    if cost:
        plots["cost"] = _bars("Instance seconds by stage", "stage", "seconds", cost)
    return plots


def _over_time(
    title: str, times: list[str], series: dict[str, tuple[float, ...]], *, kind: str
) -> tuple[str, bytes]:
    names = tuple(series)
    rows = list(zip(times, *series.values(), strict=True))
    chart = Chart.model_validate(
        {"kind": kind, "x": "time", "y": names, "title": title, "stacked": kind == "area"}
    )
    return title, draw(chart, _table(("time", *names), rows))


def _bars(title: str, x: str, y: str, rows: list[tuple[str, float]]) -> tuple[str, bytes]:
    chart = Chart(kind="horizontal_bar", x=x, y=(y,), title=title)
    return title, draw(chart, _table((x, y), rows))


def _table(columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> ItemOutcome:
    types, encoded = encode_rows(rows, columns=len(columns))
    return ItemOutcome("plot", "plot", "answered", columns=columns, types=types, rows=encoded)


def _moment(epoch_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(epoch_s, datetime.UTC):%d %b %H:%M}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
