"""`{{ yesterday }}` and other parameters: text in questions, literals in SQL.

In SQL a parameter becomes a literal of the database's dialect, quotes included, so that no value
can end the statement it stands in; the guard sees the statement afterwards all the same.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.meta
import sqlglot
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hexprefect.errors import CallerMistake
from hexprefect.reports.file import Item, Report

_LONGEST = 100_000
"""Characters of a rendered text."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values of one run."""

    values: Mapping[str, Any]

    def text(self, template: str) -> str:
        """A question, title or evidence with its parameters put in.

        Raises:
            CallerMistake: it names an unknown parameter, or is no template.
        """
        return _render(_environment(), template, self.values)

    def sql(self, template: str, *, dialect: str) -> str:
        """A statement with its parameters put in as literals.

        Raises:
            CallerMistake: as `text`; also for a value that has no literal.
        """
        environment = _environment(finalize=lambda value: sql_literal(value, dialect=dialect))
        return _render(environment, template, self.values)

    def used_in(self, *templates: str) -> dict[str, str]:
        """The parameters that templates name, as texts."""
        names = set().union(*(_names(template) for template in templates))
        return {
            name: str(self.values[name])
            for name in sorted(names)
            if name in self.values and not callable(self.values[name])
        }

    def called_in(self, *templates: str) -> tuple[str, ...]:
        """The functions that templates name: what they give is in no parameter's value."""
        names = set().union(*(_names(template) for template in templates))
        return tuple(sorted(name for name in names if callable(self.values.get(name))))


def parameters_of(
    report: Report, *, date: datetime.date, given: Mapping[str, Any] | None = None
) -> Parameters:
    """The built-in dates, the report's own parameters, and those given for this run.

    Args:
        report: whose parameters may use the built-in dates and those that stand above them.
        date: the report's own date, in its time zone.
        given: values that replace the report's for one run.

    Raises:
        CallerMistake: a parameter cannot be computed, or a given one is unknown.
    """
    values: dict[str, Any] = built_in_dates(date)
    unknown = sorted(set(given or {}) - set(report.parameters) - set(values))
    if unknown:
        raise CallerMistake(
            f"The report has no parameter {unknown[0]!r}.",
            remedy=f"It has: {', '.join(report.parameters) or 'none of its own'}.",
        )
    values.update(given or {})
    for name, value in report.parameters.items():
        if name not in (given or {}):
            values[name] = Parameters(values).text(value) if isinstance(value, str) else value
    return Parameters(values)


def built_in_dates(date: datetime.date) -> dict[str, Any]:
    """What every report knows. Weeks begin on Monday; month, week and year are yesterday's."""
    yesterday = date - datetime.timedelta(days=1)
    month_start = yesterday.replace(day=1)
    last_month_end = month_start - datetime.timedelta(days=1)
    return {
        "today": date,
        "yesterday": yesterday,
        "week_start": yesterday - datetime.timedelta(days=yesterday.weekday()),
        "month_start": month_start,
        "year_start": yesterday.replace(month=1, day=1),
        "last_month_start": last_month_end.replace(day=1),
        "last_month_end": last_month_end,
        "days_ago": lambda days: date - datetime.timedelta(days=int(days)),
    }


def sql_literal(value: Any, *, dialect: str) -> str:
    """A value as a literal of this dialect.

    Raises:
        CallerMistake: a value that has none, such as a list or an infinite number.
    """
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | decimal.Decimal():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case datetime.date() | datetime.time():
            return f"'{value.isoformat()}'"
        case str():
            return str(sqlglot.exp.Literal.string(value).sql(dialect=dialect))
    raise CallerMistake(
        f"The value {value!r} cannot stand in SQL.",
        remedy="Use texts, numbers, dates, true, false or null.",
    )


def find_mistakes(report: Report) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Templates that cannot work: `(place, problem, remedy)` of each."""
    values = built_in_dates(datetime.date(2000, 1, 1))
    known = set(values)
    for name, value in report.parameters.items():
        if name in known:
            yield ("parameters", name), f"{name!r} is built in.", "Give it another name."
        values[name] = value
        if isinstance(value, str):
            found = [*_mistakes_in(value, known, values, ("parameters", name))]
            yield from found
            values[name] = "" if found else Parameters(values).text(value)
        known.add(name)
    yield from _mistakes_in(report.title, known, values, ("title",))
    for index, item in enumerate(report.items):
        for field, template in _templates(item):
            yield from _mistakes_in(template, known, values, ("items", index, field))
        if item.sql is not None and (inside := _quoted_parameter(item.sql)):
            yield (
                ("items", index, "sql"),
                f"{inside} stands in quotes.",
                "Write it without: in SQL a parameter becomes a literal with its own quotes; "
                "to put text beside it, {{ name ~ '%' }}.",
            )


def _templates(item: Item) -> Iterator[tuple[str, str]]:
    for field in ("title", "question", "sql", "evidence"):
        value = getattr(item, field)
        if value:
            yield field, value


def _mistakes_in(
    template: str, known: set[str], values: Mapping[str, Any], place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    try:
        unknown = sorted(_names(template) - known)
        if not unknown:
            Parameters(values).text(template)
    except CallerMistake as mistake:
        yield place, mistake.problem, mistake.remedy or ""
        return
    for name in unknown:
        yield (
            place,
            f"No parameter is called {name!r}.",
            f"Known: {', '.join(sorted(known))}; or add it under `parameters:`.",
        )


def _environment(**options: Any) -> jinja2.Environment:
    return ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, **options
    )


def _names(template: str) -> set[str]:
    try:
        tree = _environment().parse(template)
    except jinja2.TemplateSyntaxError as error:
        raise _no_template(error.message or "it cannot be read") from error
    found: set[str] = jinja2.meta.find_undeclared_variables(tree)
    return found - {"range", "dict", "lipsum", "cycler", "joiner", "namespace"}


def _render(environment: jinja2.Environment, template: str, values: Mapping[str, Any]) -> str:
    try:
        rendered = environment.from_string(template).render(values)
    except jinja2.UndefinedError as error:
        raise CallerMistake(
            f"A parameter is not known: {error}.", remedy="Add it under `parameters:`."
        ) from error
    except jinja2.TemplateError as error:
        raise _no_template(str(error)) from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise _no_template(str(error)) from error
    if len(rendered) > _LONGEST:
        raise _no_template(f"it grew to {len(rendered)} characters")
    return rendered


def _no_template(why: str) -> CallerMistake:
    return CallerMistake(
        f"What stands between {{{{ and }}}} cannot be computed: {why}.",
        remedy="Write for example {{ yesterday }} or {{ days_ago(7) }}.",
    )


def _quoted_parameter(sql: str) -> str | None:
    """The first `{{ … }}` that stands within quotes of the SQL around it."""
    position, quote = 0, ""
    while position < len(sql):
        rest = sql[position:]
        if rest.startswith("{{"):
            end = sql.find("}}", position)
            end = len(sql) if end < 0 else end + 2
            if quote:
                return sql[position:end]
            position = end
            continue
        if not quote and rest.startswith("--"):
            position = _after(sql, "\n", position)
            continue
        if not quote and rest.startswith("/*"):
            position = _after(sql, "*/", position)
            continue
        character = sql[position]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        position += 1
    return None


def _after(text: str, end: str, start: int) -> int:
    found = text.find(end, start)
    return len(text) if found < 0 else found + len(end)
