"""A report as its YAML file describes it."""

from __future__ import annotations

import datetime
import hashlib
import re
import unicodedata
import zoneinfo
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

ChartKind = Literal["bar", "horizontal_bar", "line", "area", "scatter"]
ResultFormat = Literal["csv", "parquet"]
ColumnType = Literal[
    "boolean",
    "integer",
    "number",
    "decimal",
    "text",
    "date",
    "timestamp",
    "time",
    "interval",
    "bytes",
    "uuid",
    "json",
]
"""The types of `hexprefect.text2sql.encoding`."""

Title = Annotated[str, Field(min_length=1, max_length=200)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,79}$")]
_LONGEST_SLUG = 80
ParameterValue = bool | int | float | str | datetime.date | None


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Columns = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
"""One column's name, or a list of them."""


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Chart(_Described):
    """A chart, declared: nothing of it is ever executed."""

    kind: ChartKind = "bar"
    x: str
    """The column along the axis."""
    y: Columns
    """The columns that are drawn; numbers."""
    title: str | None = None
    stacked: bool = False


class ColumnCheck(_Described):
    """What must hold for the values of one column. NULL passes all but `not_null`."""

    column: str
    not_null: bool = False
    unique: bool = False
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[bool | int | float | str, ...] | None = None
    change_at_most: Annotated[float, Field(gt=0)] | None = None
    """How far the column's sum may be from that of the last run, as a fraction: 0.5 is 50 %."""

    @model_validator(mode="after")
    def _checks_something(self) -> ColumnCheck:
        if not self.model_fields_set - {"column"}:
            raise ValueError(
                f"the check of {self.column!r} checks nothing: add not_null, unique, at_least, "
                "at_most, one_of or change_at_most"
            )
        return self


class RowCount(_Described):
    """Bounds on the number of rows."""

    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> RowCount:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"at least {self.min} and at most {self.max} rows cannot both hold")
        return self


def _row_count(value: Any) -> Any:
    return {"min": value, "max": value} if isinstance(value, int) else value


class Expectation(_Described):
    """The shape that a result should have. A result that has another is shown, and marked."""

    columns: tuple[str, ...] | None = None
    """All columns in their order; case does not matter."""
    types: Mapping[str, ColumnType] = Field(default_factory=dict)
    rows: Annotated[RowCount | None, BeforeValidator(_row_count)] = None
    """A number, or `min` and `max`."""
    checks: tuple[ColumnCheck, ...] = ()

    def mentioned(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (*(self.columns or ()), *self.types, *(check.column for check in self.checks))


class Item(_Described):
    """One question, or one pinned statement, or a question with the statement that answers it."""

    title: Title
    question: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    sql: Annotated[str, Field(min_length=1)] | None = None
    evidence: Annotated[str, Field(max_length=8000)] = ""
    pin: bool = True
    """Keep the SQL that answered the question until the schema changes."""
    expect: Expectation = Expectation()
    chart: Chart | None = None
    compare_by: Columns | None = None
    """The columns that say which row is which, for the change since the last run."""

    @model_validator(mode="after")
    def _asks_something(self) -> Item:
        if self.question is None and self.sql is None:
            raise ValueError(f"the item {self.title!r} needs a question, or sql, or both")
        known = self.expect.columns
        if known is not None:
            folded = {column.casefold() for column in known}
            for column in self._columns_used():
                if column.casefold() not in folded:
                    raise ValueError(
                        f"the item {self.title!r} uses the column {column!r}, which is not among "
                        f"its expected columns {', '.join(known)}"
                    )
        return self

    @property
    def key(self) -> str:
        """Its name in files and in the archive: the title in plain letters."""
        return slug(self.title)

    def _columns_used(self) -> tuple[str, ...]:
        drawn = () if self.chart is None else (self.chart.x, *self.chart.y)
        return (*self.expect.mentioned(), *drawn, *(self.compare_by or ()))


class Recipient(_Described):
    """Who gets the report: a notification block of Prefect, by its type and name."""

    block: Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")]
    """For example `slack-webhook/shop-team`, or `email-server-credentials/office`."""
    to: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    """Addresses; for e-mail blocks that do not hold them themselves."""
    when: Literal["always", "problems"] = "always"

    @model_validator(mode="after")
    def _has_addresses(self) -> Recipient:
        if self.block.startswith("email-server-credentials/") and not self.to:
            raise ValueError(f"{self.block} needs the addresses to send to: add `to: [name@host]`")
        return self


def _clock_time(value: Any) -> Any:
    # YAML 1.1 reads 16:00 as the number 960, in base 60.
    return f"{value // 60:02d}:{value % 60:02d}" if isinstance(value, int) else value


TimeOfDay = Annotated[str, Field(pattern=r"^([01]?[0-9]|2[0-3]):[0-5][0-9]$")]


class Report(_Described):
    """A report's file."""

    title: Title
    name: Name | None = None
    """Under which it is archived; the file's name by default."""
    database: Annotated[str, Field(min_length=1)]
    tenant: str = "default"
    """One tenant for all items, so that a report competes with itself before others."""
    timezone: str = "UTC"
    ready_by: Annotated[TimeOfDay | None, BeforeValidator(_clock_time)] = None
    """Local time at which the report is due: the common deadline of all items."""
    ready_in_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    """Seconds that a run has when it starts after `ready_by`, or where there is none."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 4
    """Items that run at the same time."""
    statement_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Seconds that one pinned statement may run."""
    max_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Rows kept of each pinned statement."""
    parameters: Mapping[Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")], ParameterValue] = (
        Field(default_factory=dict)
    )
    """Names for `{{ name }}` in questions and SQL; texts may use the built-in dates themselves."""
    results: tuple[ResultFormat, ...] = ("csv",)
    recipients: tuple[Recipient, ...] = ()
    items: Annotated[tuple[Item, ...], Field(min_length=1)]

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"no time zone is called {name!r}: write it as Europe/Berlin, or UTC"
            ) from error
        return name

    @field_validator("items")
    @classmethod
    def _have_names_of_their_own(cls, items: tuple[Item, ...]) -> tuple[Item, ...]:
        seen: dict[str, str] = {}
        for item in items:
            if item.key in seen:
                raise ValueError(
                    f"the items {seen[item.key]!r} and {item.title!r} have the same name in files "
                    f"({item.key}): give them different titles, in letters a-z or digits"
                )
            seen[item.key] = item.title
        return items

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        """The time zone in which its dates and `ready_by` are meant."""
        return zoneinfo.ZoneInfo(self.timezone)


def slug(text: str) -> str:
    """A text as a file name: plain lower-case letters, digits and hyphens.

    Where letters have no plain form, or there are too many of them, the name ends in a fingerprint
    of the text, so that two reports or items have two names in every language.
    """
    spelt = unicodedata.normalize("NFKD", text)
    plain = spelt.encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    is_whole = all(letter.isascii() for letter in spelt if letter.isalnum())
    if name and is_whole and len(name) <= _LONGEST_SLUG:
        return name
    mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{name[: _LONGEST_SLUG - len(mark) - 1].rstrip('-') or 'item'}-{mark}"
