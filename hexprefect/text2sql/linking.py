"""Schema linking: which tables, columns and values a question is about.

A schema that fits the budget is always sent whole: the answer of the linking call then only points
at parts of it, and a wrong answer hides nothing. A schema that does not fit is ranked by BM25 over
its columns, the linked tables are moved to the front, and tables that join two chosen ones come
along with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import anyio.to_thread
import bm25s
from pydantic import BaseModel, ConfigDict, Field

from hexprefect.completion import Complete, Prompt
from hexprefect.text2sql.names import words_of
from hexprefect.text2sql.prompting import PromptBook, json_answer, read_json
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Schema, Table
from hexprefect.text2sql.value_index import value_index
from hexprefect.text2sql.values import ValueMatch

STAGE = "schema_linking"
_COLUMNS_RANKED = 60
_HINTED_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Links:
    """What a question was linked to. Everything in it exists in the schema."""

    tables: tuple[str, ...] = ()
    """Full names."""
    columns: tuple[str, ...] = ()
    """As `table.column`."""
    values: tuple[ValueMatch, ...] = ()
    by_model: bool = False
    """Whether the model was asked; values are found without it."""

    def hints(self) -> str:
        """Lines for a prompt; empty when nothing was found. Values are quoted data."""
        lines = []
        if self.columns:
            lines.append("Probably needed: " + ", ".join(self.columns[:_HINTED_COLUMNS]) + ".")
        if self.values:
            shown = "; ".join(item.shown() for item in self.values)
            lines.append(f"Values in the database that match words of the question: {shown}.")
        return "\n".join(lines)


class _LinkingAnswer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tables: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    values: list[str] = Field(default_factory=list)


_ANSWER_FORMAT = json_answer(
    "schema_links",
    {
        "type": "object",
        "properties": {
            name: {"type": "array", "items": {"type": "string"}, "maxItems": most}
            for name, most in (("tables", 8), ("columns", 12), ("values", 6))
        },
        "required": ["tables", "columns", "values"],
        "additionalProperties": False,
    },
)


def link_by_words(question: str, schema: Schema) -> Links:
    """Values that the question mentions: code only, no model."""
    return Links(values=value_index(schema).find(question))


def linking_prompt(book: PromptBook) -> Prompt:
    """The call that asks the model what the question needs."""
    return book.prompt(
        STAGE, "schema_linking", {}, max_output_tokens=250, response_format=_ANSWER_FORMAT
    )


async def link_by_model(book: PromptBook, schema: Schema, complete: Complete) -> Links:
    """Ask the model; keep of its answer only what exists.

    An answer that cannot be read links nothing, which costs the hint and nothing else.
    """
    completion = await complete(linking_prompt(book))
    # The schema's indexes are built the first time, and a catalogue may hold thousands of tables.
    return await anyio.to_thread.run_sync(_links_of, completion.text, book.question, schema)


def _links_of(text: str, question: str, schema: Schema) -> Links:
    answer = read_json(text, _LinkingAnswer) or _LinkingAnswer()
    tables = [found for name in answer.tables if (found := _table(schema, name)) is not None]
    columns = []
    for name in answer.columns:
        table_name, _, column_name = name.rpartition(".")
        table = _table(schema, table_name)
        column = table.column(_bare(column_name)) if table is not None else None
        if table is not None and column is not None:
            columns.append(f"{qualified_name(table, schema.dialect)}.{column.name}")
            tables.append(table)
    return Links(
        tables=tuple(dict.fromkeys(table.full_name for table in tables)),
        columns=tuple(dict.fromkeys(columns)),
        values=value_index(schema).find(question, phrases=answer.values),
        by_model=True,
    )


def rank_tables(question: str, schema: Schema, *, linked: Sequence[str] = ()) -> tuple[str, ...]:
    """Full names of tables, the most relevant first, each with what joins it to those before it.

    Args:
        question: with any evidence appended.
        schema: the whole schema.
        linked: full names that a linking call chose; they come first.
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for full_name, score in _column_scores(question, schema):
        scores[full_name] += score
    ranked = [*linked, *sorted(scores, key=lambda name: -scores[name])]
    neighbours = _neighbours(schema)
    ordered: dict[str, None] = {}
    for name in ranked:
        ordered.setdefault(name)
        for bridge in neighbours[name]:
            # A table that touches two chosen ones is how they are joined.
            if sum(other in ordered for other in neighbours[bridge]) > 1:
                ordered.setdefault(bridge)
    return tuple(ordered)


class _ColumnIndex:
    """BM25 over one document a column: the words of its table, its name, comment and examples."""

    def __init__(self, schema: Schema) -> None:
        self.owners: list[str] = []
        documents: list[list[str]] = []
        for table in schema.tables:
            for column in table.columns:
                text = " ".join(
                    [table.comment or "", column.comment or "", *column.samples]
                ).lower()
                names = words_of(table.name) + words_of(column.name)
                documents.append([stem(word) for word in names * 2 + words_of(text)])
                self.owners.append(table.full_name)
        self.retriever = bm25s.BM25()
        self.retriever.index(documents, show_progress=False)


_column_indexes: WeakKeyDictionary[Schema, _ColumnIndex] = WeakKeyDictionary()


def _column_scores(question: str, schema: Schema) -> list[tuple[str, float]]:
    if not schema.column_count:
        return []
    if schema not in _column_indexes:
        _column_indexes[schema] = _ColumnIndex(schema)
    index = _column_indexes[schema]
    query = [stem(word) for word in words_of(question)]
    wanted = min(_COLUMNS_RANKED, len(index.owners))
    found, scores = index.retriever.retrieve([query], k=wanted, show_progress=False)
    return [
        (index.owners[int(position)], float(score))
        for position, score in zip(found[0], scores[0], strict=True)
        if score > 0
    ]


def _neighbours(schema: Schema) -> defaultdict[str, set[str]]:
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for table in schema.tables:
        for key in table.foreign_keys:
            target = schema.table(key.table, key.schema)
            if target is not None and target is not table:
                neighbours[table.full_name].add(target.full_name)
                neighbours[target.full_name].add(table.full_name)
    return neighbours


def _table(schema: Schema, name: str) -> Table | None:
    owner, _, bare = name.rpartition(".")
    return schema.table(_bare(bare), _bare(owner) or None)


def _bare(name: str) -> str:
    return name.strip().strip("\"'`[]")


def stem(word: str) -> str:
    """A word without a plural ending: enough of a stem for identifiers."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
