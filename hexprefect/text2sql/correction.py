"""Execution-guided self-correction: what went wrong, in words that help to put it right."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hexprefect.completion import Prompt
from hexprefect.errors import HexprefectError
from hexprefect.text2sql.diagnosis import diagnose, near_names
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import render_table
from hexprefect.text2sql.schema import Schema, Table

STAGE = "self_correction"
EMPTY_RESULT = (
    "It ran without an error but returned no rows. Check the joins, and check that the values in "
    "its conditions are spelt as in the database."
)
_UNKNOWN_NAME = re.compile(
    # SQLite, PostgreSQL, DuckDB (columns, then tables), MySQL, and the guard, in this order.
    r"no such (?:column|table|function): (?:\w+\.)*[\"`\[]?(?P<sqlite>\w+)"
    r"|(?:column|relation|function) [\"]?(?:\w+\.)*(?P<postgres>\w+)[\"]? does not exist"
    r"|column [\"](?P<duckdb>\w+)[\"] not found"
    r"|Unknown column '(?:\w+\.)*(?P<mysql>\w+)'"
    r"|there is no table (?:\w+\.)*(?P<guard>\w+)"
    r"|does not have a column named [\"](?P<duckdb_table>\w+)[\"]",
    re.IGNORECASE,
)
_BROUGHT_BACK = 3
"""Tables that one correction brings back: each costs what it has as a prompt."""


def correction_prompt(
    book: PromptBook, *, sql: str, problem: str, hints: str, branch: str, attempt: int
) -> Prompt:
    """The call that asks for a corrected statement.

    Args:
        book: writes the query's prompts.
        sql: the statement that went wrong.
        problem: what went wrong, as `describe` says it.
        hints: what linking found.
        branch: the candidate that is corrected.
        attempt: 1 for the first correction; later ones are drawn, for a greedy model that repeats
            itself would repeat its mistake.
    """
    return book.prompt(
        STAGE,
        "self_correction",
        {"sql": sql, "problem": problem, "hints": hints},
        branch=branch,
        temperature=0.0 if attempt == 1 else 0.5,
        seed=attempt,
    )


def unknown_name(error: str) -> str | None:
    """The name of a column, table or function that an error says does not exist, else None."""
    match = _UNKNOWN_NAME.search(error)
    return None if match is None else next(filter(None, match.groups()))


def describe(
    error: HexprefectError, schema: Schema, *, sql: str = "", omitted: Sequence[str] = ()
) -> str:
    """The error with what the catalogue knows about it, for the model.

    Args:
        error: of the guard or the database.
        schema: the whole schema.
        sql: the statement; its misplaced columns are named with their tables and keys.
        omitted: full names of the tables that the prompt does not show. Those that have the unknown
            name come with the error, so that what was cut from a large schema can be used.
    """
    lines = [f"It failed: {error}"]
    name = unknown_name(str(error))
    if name is None:
        return lines[0]
    if found := diagnose(sql, schema):
        lines.append(found)
    elif near := near_names(name, schema):
        lines.append(f"Near names in the schema: {', '.join(near)}.")
    if hidden := omitted_tables_with(name, schema, omitted):
        lines.append("Tables that were not shown before:")
        lines += [render_table(table, schema.dialect, True) for table in hidden]
    return "\n".join(lines)


def omitted_tables_with(name: str, schema: Schema, omitted: Sequence[str]) -> tuple[Table, ...]:
    """Tables among `omitted` that are called `name` or have such a column, at most a few.

    A table of that name comes before those with such a column.
    """
    hidden = set(omitted)
    wanted = name.casefold()
    tables = [table for table in schema.tables if table.full_name in hidden]
    called = [table for table in tables if table.name.casefold() == wanted]
    holding = [table for table in tables if table not in called and table.column(name) is not None]
    return tuple([*called, *holding][:_BROUGHT_BACK])
