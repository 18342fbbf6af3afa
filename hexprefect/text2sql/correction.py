"""Execution-guided self-correction: what went wrong, in words that help to put it right."""

from __future__ import annotations

import re

from rapidfuzz import fuzz, process

from hexprefect.completion import Prompt
from hexprefect.errors import HexprefectError
from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.prompting import PromptBook
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Schema

STAGE = "self_correction"
EMPTY_RESULT = (
    "It ran without an error but returned no rows. Check the joins, and check that the values in "
    "its conditions are spelt as in the database."
)
_NAMES_SHOWN = 5
_NEAR_ENOUGH = 60.0
_UNKNOWN_NAME = re.compile(
    r"no such (?:column|table|function): (?:\w+\.)*[\"`\[]?(?P<sqlite>\w+)"
    r"|(?:column|relation|function) [\"]?(?:\w+\.)*(?P<postgres>\w+)[\"]? does not exist",
)


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


def describe(error: HexprefectError, schema: Schema) -> str:
    """The error with near names from the catalogue, for the model."""
    text = f"It failed: {error}"
    match = _UNKNOWN_NAME.search(str(error))
    if match is None:
        return text
    near = near_names(match["sqlite"] or match["postgres"], schema)
    return f"{text}\nNear names in the schema: {', '.join(near)}." if near else text


def near_names(name: str, schema: Schema) -> list[str]:
    """Columns (as `table.column`) and tables whose names resemble `name`, the nearest first."""
    names: dict[str, str] = {}
    for table in schema.tables:
        shown = qualified_name(table, schema.dialect)
        names[shown] = table.name
        for column in table.columns:
            names[f"{shown}.{quoted(column.name, schema.dialect)}"] = column.name
    found = process.extract(
        name.casefold(),
        {key: value.casefold() for key, value in names.items()},
        scorer=fuzz.WRatio,
        score_cutoff=_NEAR_ENOUGH,
        limit=_NAMES_SHOWN,
    )
    return [key for _, _, key in found]
