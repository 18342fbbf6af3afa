"""A report as markdown, for Prefect's UI and for messages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

from hexprefect.reports.numbers import shown_cell
from hexprefect.reports.outcome import ItemOutcome, ReportOutcome
from hexprefect.reports.sql_layout import format_sql

MOST_ROWS = 30
"""Rows of one item in the document; its result file has them all."""

_LONGEST_SAID = 300
"""Characters of one value or reason in a message: Slack and others refuse long ones."""

_CALLS_EVERYBODY = re.compile(r"@(?=everyone|here|channel|all)", re.IGNORECASE)


def report_markdown(outcome: ReportOutcome) -> str:
    """The whole report, with what failed said first."""
    lines = [f"# {markdown_text(outcome.title)}", "", _about(outcome), ""]
    if outcome.state != "complete":
        lines += [f"**{outcome.state.capitalize()}: {markdown_text(outcome.message)}.**", ""]
    if not outcome.in_time:
        lines += ["**It was not ready in time.**", ""]
    for item in outcome.items:
        lines += [f"## {markdown_text(item.title)}", "", *_item(item, outcome)]
    return "\n".join(lines)


def message_text(outcome: ReportOutcome, *, where: str) -> str:
    """The report in a few lines of plain text, for a notification.

    Args:
        where: the document's place: a path or a URL.
    """
    lines = [f"{message_line(outcome.message)}."]
    for item in outcome.items:
        title = message_line(item.title)
        if item.state == "failed":
            lines.append(f"- {title}: failed. {message_line(item.reason or '')}")
            continue
        value = _value(item)
        said = message_line(value) if value else f"{len(item.rows)} rows"
        if item.change is not None:
            said += f"; since {item.change.since}: {message_line(item.change.summary)}"
        said += "".join(
            f"; expected that {message_line(one.check)}, but {message_line(one.detail)}"
            for one in item.unmet
        )
        lines.append(f"- {title}: {said}")
    return "\n".join([*lines, "", f"The report: {where}"])


def message_line(text: str) -> str:
    """Text of people, models and databases inside a message: one short line that is no markup.

    A value such as `<!channel>` would call a whole company, one such as `<https://…|here>` would be
    a link: what a chat programme takes for markup is in angle brackets, so that there are none.
    """
    line = " ".join(text.split())
    if len(line) > _LONGEST_SAID:
        line = line[: _LONGEST_SAID - 1] + "…"
    line = line.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}")
    line = line.replace(">", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}")
    return _CALLS_EVERYBODY.sub("@\N{ZERO WIDTH SPACE}", line)


def markdown_text(text: str) -> str:
    """Text of people, models and databases inside markdown: never markup."""
    escaped = text.replace("\\", "\\\\")
    for character in "`*_[]<>#|!&~":
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())


def fenced(text: str, language: str = "") -> list[str]:
    """A block of code that nothing in it can end."""
    longest = max((len(run) for run in _backticks(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A table of cells."""
    lines = [
        f"| {' | '.join(markdown_text(column) or ' ' for column in columns)} |",
        f"|{' --- |' * len(columns)}",
    ]
    lines += [
        f"| {' | '.join(markdown_text(shown_cell(cell)) or ' ' for cell in row)} |" for row in rows
    ]
    return lines


def shown_time(epoch_s: float, outcome: ReportOutcome) -> str:
    """A time of day in the report's time zone."""
    from zoneinfo import ZoneInfo

    when = datetime.datetime.fromtimestamp(epoch_s, ZoneInfo(outcome.timezone))
    return f"{when:%Y-%m-%d %H:%M:%S}"


def _about(outcome: ReportOutcome) -> str:
    return (
        f"{outcome.date}, database {markdown_text(outcome.database)}; "
        f"ready {shown_time(outcome.ended_at, outcome)}, "
        f"due {shown_time(outcome.due_at, outcome)} ({markdown_text(outcome.timezone)})."
    )


def _item(item: ItemOutcome, outcome: ReportOutcome) -> list[str]:
    lines = []
    if item.question:
        lines += [f"*{markdown_text(item.question)}*", ""]
    if item.state == "failed":
        lines += [f"**Failed:** {markdown_text(item.reason or 'no reason is known')}", ""]
    else:
        lines += [*_rows(item), ""]
    if item.change is not None:
        lines += [f"Since {item.change.since}: {markdown_text(item.change.summary)}"]
        lines += [f"- {markdown_text(detail)}" for detail in item.change.details]
        lines += [""]
    lines += [
        f"- **Not as expected:** {markdown_text(one.check)}, but {markdown_text(one.detail)}"
        for one in item.unmet
    ]
    lines += [f"- {markdown_text(note)}" for note in item.notes]
    if item.sql:
        lines += ["", *fenced(format_sql(item.sql), "sql"), ""]
    return lines


def _rows(item: ItemOutcome) -> list[str]:
    if not item.columns:
        return ["No columns."]
    if not item.rows:
        return ["No rows."]
    lines = markdown_table(item.columns, item.rows[:MOST_ROWS])
    if len(item.rows) > MOST_ROWS or item.truncated:
        shown = min(len(item.rows), MOST_ROWS)
        more = "more" if item.truncated else str(len(item.rows))
        lines += ["", f"The first {shown} rows of {more}."]
    return lines


def _value(item: ItemOutcome) -> str | None:
    """The only cell of a result that has one."""
    if len(item.rows) == len(item.columns) == 1:
        return shown_cell(item.rows[0][0])
    return None


def _backticks(text: str) -> list[str]:
    runs, run = [], ""
    for character in text:
        run = run + character if character == "`" else ""
        if run:
            runs.append(run)
    return runs
