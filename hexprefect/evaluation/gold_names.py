"""Which tables and columns a statement names, and which of them a prompt showed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError

from hexprefect.text2sql.parsing import parse, tokenize
from hexprefect.text2sql.schema import Schema, Table

_DEFINITION = re.compile(
    r"^CREATE (?:TABLE|VIEW) (?P<name>[^\n(]+?) \(.*?\n(?P<body>.*?)^\);", re.MULTILINE | re.DOTALL
)
_IDENTIFIER = re.compile(r'\s*(?:"(?P<double>(?:[^"]|"")+)"|`(?P<back>[^`]+)`|(?P<plain>\w+))')
_NO_COLUMNS = re.compile(r"\s*(?:PRIMARY|FOREIGN|UNIQUE|CHECK|CONSTRAINT)\s", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Names:
    """Tables and columns, case-folded."""

    tables: frozenset[str]
    columns: frozenset[str]
    """As `table.column`."""

    def recall(self, found: Names) -> tuple[float, float]:
        """The shares of these tables and of these columns that were found; 1 of none."""
        return _share(self.tables, found.tables), _share(self.columns, found.columns)


def _share(wanted: frozenset[str], found: frozenset[str]) -> float:
    return len(wanted & found) / len(wanted) if wanted else 1.0


def parsed(sql: str, dialect: str) -> exp.Expr | None:
    """The tree of a statement; None when it cannot be read as one."""
    try:
        trees = parse(tokenize(sql, dialect), sql, dialect)
    except (SqlglotError, RecursionError):
        return None
    return trees[0] if len(trees) == 1 else None


def names_in(tree: exp.Expr, schema: Schema) -> Names:
    """The catalogue's tables and columns that a statement names.

    A column without its table belongs to the nearest query around it that reads a table which has
    it. `*` names no column.
    """
    tables = {table.full_name for node in tree.find_all(exp.Table) if (table := _of(node, schema))}
    columns = {
        f"{table.full_name}.{found.name}"
        for node in tree.find_all(exp.Column)
        if (table := _owner(node, schema)) and (found := table.column(node.name))
    }
    return Names(_folded(tables), _folded(columns))


def names_shown(prompt: str) -> Names | None:
    """The tables and columns whose definitions a prompt holds; None when it holds none."""
    tables: set[str] = set()
    columns: set[str] = set()
    for definition in _DEFINITION.finditer(prompt):
        name = ".".join(_parts(definition["name"]))
        tables.add(name)
        for line in definition["body"].splitlines():
            if not _NO_COLUMNS.match(line) and (found := _IDENTIFIER.match(line)):
                columns.add(f"{name}.{_text(found)}")
    return Names(_folded(tables), _folded(columns)) if tables else None


def _parts(name: str) -> Iterator[str]:
    return (_text(found) for found in _IDENTIFIER.finditer(name))


def _text(found: re.Match[str]) -> str:
    return (found["double"] or "").replace('""', '"') or found["back"] or found["plain"]


def _folded(names: set[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)


def _of(node: exp.Table, schema: Schema) -> Table | None:
    return schema.table(node.name, node.db or None)


def _owner(column: exp.Column, schema: Schema) -> Table | None:
    called = column.table.casefold()
    above = column.parent
    while above is not None:
        if isinstance(above, exp.Select):
            for source in _sources(above):
                table = _of(source, schema)
                if table is None:
                    continue
                is_meant = called in (source.alias_or_name.casefold(), source.name.casefold())
                if is_meant if called else table.column(column.name) is not None:
                    return table
        above = above.parent
    return None


def _sources(select: exp.Select) -> Iterator[exp.Table]:
    """Tables in FROM and JOIN of this query itself."""
    for clause in (select.args.get("from_"), *(select.args.get("joins") or ())):
        if clause is not None and isinstance(clause.this, exp.Table):
            yield clause.this
