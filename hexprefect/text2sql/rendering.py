"""A schema as prompt text: DDL with example values, within a token budget."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.schema import Column, Schema, Table, Vocabulary

CHARACTERS_A_TOKEN = 3.2
"""What Qwen2.5-Coder needs for DDL; the same figure as `Prompt.estimated_input_tokens`."""
_COMMENT_CHARACTERS = 120
_MEANING_CHARACTERS = 400
_COLUMN_FRAME = len("\n  ,")
_FOREIGN_KEY_FRAME = len("\n  FOREIGN KEY () REFERENCES ,")
"""What stands around the names of a column or key at least."""
_VOCABULARY_SHARE = 0.25
"""Of the budget, at most, for glossary and examples: the tables matter more."""


def estimated_tokens(text: str) -> int:
    """Tokens of a text before any tokenizer has seen it."""
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))


@dataclass(frozen=True, slots=True)
class RenderedSchema:
    """Prompt text for a schema, and what did not fit."""

    text: str
    tokens: int
    omitted_tables: tuple[str, ...] = ()
    has_samples: bool = True
    omitted_words: int = 0
    """Entries of the glossary and examples that did not fit."""

    @property
    def key(self) -> str:
        """Names the text for prefix caches."""
        return f"schema:{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


def render_schema(
    schema: Schema, *, token_budget: int, ranking: Sequence[str] = ()
) -> RenderedSchema:
    """Render as much of a schema as the budget holds, best first.

    The whole schema with example values if it fits, else without them, else the tables in order of
    `ranking` (full names, the most relevant first) with what remains named in `omitted_tables` and
    in the text itself, so that neither the reader nor the model takes it for the whole.

    Args:
        schema: what to render.
        token_budget: estimated tokens of the text, at most (one table is always shown).
        ranking: full names of tables; those not named come last, in schema order.
    """
    words, omitted_words = _render_vocabulary(
        schema.vocabulary, round(token_budget * _VOCABULARY_SHARE)
    )
    left = token_budget - (estimated_tokens(words) if words else 0)
    tables = _render_tables(schema, left, ranking)
    text = f"{tables.text}\n{words}" if words else tables.text
    return replace(tables, text=text, tokens=estimated_tokens(text), omitted_words=omitted_words)


def _render_tables(schema: Schema, token_budget: int, ranking: Sequence[str]) -> RenderedSchema:
    for with_samples in (True, False):
        text = _render_whole(schema, token_budget, with_samples)
        if text is not None:
            return RenderedSchema(text, estimated_tokens(text), has_samples=with_samples)
    return _render_ranked(schema, token_budget, ranking)


def _render_vocabulary(vocabulary: Vocabulary, token_budget: int) -> tuple[str, int]:
    """Glossary and examples as comments, in their order, and how many did not fit.

    Every line is a comment on one line: nothing in them can pose as a part of the schema.
    """
    entries = [
        *(
            ("-- What words mean here:", f"-- {_one_line(word)}: {_meaning(meaning)}")
            for word, meaning in vocabulary.glossary
        ),
        *(
            (
                "-- Verified statements:",
                f"-- {_meaning(item.question)}\n-- {_meaning(item.sql)}",
            )
            for item in vocabulary.examples
        ),
    ]
    lines: list[str] = []
    omitted = 0
    for heading, entry in entries:
        wanted = [entry] if heading in lines else [heading, entry]
        if estimated_tokens("\n".join([*lines, *wanted])) > token_budget:
            omitted += 1
            continue
        lines.extend(wanted)
    return "\n".join(lines), omitted


def _render_whole(schema: Schema, token_budget: int, with_samples: bool) -> str | None:
    """All tables, or None as soon as they pass the budget: a catalogue may hold thousands."""
    parts: list[str] = []
    characters = 0
    for table in schema.tables:
        parts.append(render_table(table, schema.dialect, with_samples))
        characters += len(parts[-1]) + 1
        if characters / CHARACTERS_A_TOKEN > token_budget + 1:
            return None
    text = "\n".join(parts)
    return text if estimated_tokens(text) <= token_budget else None


def _render_ranked(schema: Schema, token_budget: int, ranking: Sequence[str]) -> RenderedSchema:
    position = {name: index for index, name in enumerate(ranking)}
    ordered = sorted(schema.tables, key=lambda table: position.get(table.full_name, len(position)))
    shown: list[str] = []
    omitted: list[str] = []
    left = token_budget - 40  # The line that names what is missing.
    for table in ordered:
        if shown and _least_tokens(table) > left:
            omitted.append(table.full_name)
            continue
        text = render_table(table, schema.dialect, True)
        if estimated_tokens(text) > left:
            text = render_table(table, schema.dialect, False)
        if shown and estimated_tokens(text) > left:
            omitted.append(table.full_name)
            continue
        shown.append(text)
        left -= estimated_tokens(text)
    named = ", ".join(omitted[:8]) + (", …" if len(omitted) > 8 else "")
    shown.append(f"-- {len(omitted)} less relevant tables are not shown: {named}")
    text = "\n".join(shown)
    return RenderedSchema(text, estimated_tokens(text), tuple(omitted))


def _least_tokens(table: Table) -> float:
    """Tokens of the definition without quotes, schemas and comments.

    So near to what `render_table` gives that a table which cannot fit is hardly ever rendered: of
    a catalogue of thousands nearly none can.
    """
    columns = sum(len(item.name) + len(item.type) + _COLUMN_FRAME for item in table.columns)
    keys = sum(
        _FOREIGN_KEY_FRAME + len(key.table) + sum(map(len, (*key.columns, *key.referred_columns)))
        for key in table.foreign_keys
    )
    primary = len(" PRIMARY KEY") if len(table.primary_key) == 1 else 0
    frame = len("CREATE VIEW  (\n);") + len(table.name) - len(",")
    return (frame + columns + keys + primary) / CHARACTERS_A_TOKEN


def render_table(table: Table, dialect: str, with_samples: bool) -> str:
    """One table or view as a CREATE statement with comments."""
    kind = "VIEW" if table.is_view else "TABLE"
    name = qualified_name(table, dialect)
    keys = {*table.primary_key, *(name for key in table.foreign_keys for name in key.columns)}
    lines = [
        *(
            (
                _column_definition(item, table, dialect),
                _note(item, with_samples and not _is_number_key(item, keys)),
            )
            for item in table.columns
        ),
        *_keys(table, dialect),
    ]
    body = [
        f"  {definition}{',' if index < len(lines) - 1 else ''}{note}"
        for index, (definition, note) in enumerate(lines)
    ]
    comment = f" -- {_one_line(table.comment)}" if table.comment else ""
    return "\n".join([f"CREATE {kind} {name} ({comment}", *body, ");"])


def qualified_name(table: Table, dialect: str) -> str:
    """The table's name as a statement must write it."""
    name = quoted(table.name, dialect)
    return name if table.schema is None else f"{quoted(table.schema, dialect)}.{name}"


def _column_definition(column: Column, table: Table, dialect: str) -> str:
    primary = " PRIMARY KEY" if table.primary_key == (column.name,) else ""
    # A view's computed columns have no type in SQLite; an enumeration's has all its values.
    kind = f" {_meaning(column.type)}" if column.type else ""
    return f"{quoted(column.name, dialect)}{kind}{primary}"


def _note(column: Column, with_samples: bool) -> str:
    parts = []
    if column.comment:
        parts.append(_one_line(column.comment))
    if with_samples and column.samples:
        parts.append("e.g. " + ", ".join(column.samples))
    return f" -- {'; '.join(parts)}" if parts else ""


def _is_number_key(column: Column, keys: Collection[str]) -> bool:
    """Numbers of a key say nothing that its type does not."""
    return column.name in keys and all(item.lstrip("-").isdigit() for item in column.samples)


def _keys(table: Table, dialect: str) -> list[tuple[str, str]]:
    """Definitions of keys over several columns and of foreign keys, with what to note of them."""
    keys = []
    if len(table.primary_key) > 1:
        keys.append((f"PRIMARY KEY ({_names(table.primary_key, dialect)})", ""))
    for key in table.foreign_keys:
        target = quoted(key.table, dialect)
        if key.schema is not None:
            target = f"{quoted(key.schema, dialect)}.{target}"
        referred = f" ({_names(key.referred_columns, dialect)})" if key.referred_columns else ""
        columns = _names(key.columns, dialect)
        note = " -- guessed from the names" if key.is_guess else ""
        keys.append((f"FOREIGN KEY ({columns}) REFERENCES {target}{referred}", note))
    return keys


def _names(names: Sequence[str], dialect: str) -> str:
    return ", ".join(quoted(name, dialect) for name in names)


def _meaning(text: str) -> str:
    return " ".join(text.split())[:_MEANING_CHARACTERS]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_COMMENT_CHARACTERS]
