"""Names of a statement against the catalogue: which tables it reads, and how they are written.

A name is the table that the catalogue has, the WITH query that is visible where it stands, or
refused. What is found is written back as the catalogue spells it, so that the database cannot read
it as another; a table with hidden columns is written as a query of those that may be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from sqlglot import exp

from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.names import must_be_quoted, same_name
from hexprefect.text2sql.schema import Schema, Table

Named = exp.Table | exp.Column
"""Where a table's name stands; a column where SQLite's `x IN name` reads the table `name`."""

_CLAUSES_OF_A_QUERY = frozenset({"alias", "joins", "laterals", "pivots", "sample"})
"""What may stand behind a query in FROM as it does behind a table."""


@dataclass(frozen=True, slots=True)
class Found:
    """A place in a statement that reads a table."""

    node: Named
    table: Table | None
    """None when no catalogue was given."""

    @property
    def name(self) -> str:
        """Full name of the table."""
        return self.node.name if self.table is None else self.table.full_name


def resolve_tables(tree: exp.Expr, dialect: str, schema: Schema | None) -> list[Found]:
    """Every place of a statement that reads a table of the catalogue.

    Raises:
        StatementRefused: a name is neither in the catalogue nor a WITH query visible there.
    """
    found = []
    for node in list(_table_names(tree)):
        if cte_of(node, dialect) is not None:
            continue
        table = None
        if schema is not None:
            table = lookup_table(node, dialect, schema)
            if table is None:
                raise _unknown_table(node, schema)
        found.append(Found(node, table))
    return found


def spell_tables(found: Sequence[Found], dialect: str) -> None:
    """Write every table as the catalogue spells it; what it was called stays as its alias."""
    for item in found:
        if item.table is None:
            continue
        called = item.node.this
        is_same = same_name(called, item.table.name, is_quoted=True, dialect=dialect)
        if not is_same and isinstance(item.node, exp.Table) and not item.node.alias:
            # Columns go on calling it what the statement called it.
            item.node.set("alias", exp.TableAlias(this=called.copy()))
        item.node.set("this", _identifier(item.table.name, dialect))
        owner = "table" if isinstance(item.node, exp.Column) else "db"
        if item.node.args.get(owner) is not None and item.table.schema is not None:
            item.node.set(owner, _identifier(item.table.schema, dialect))


def hide_columns(found: Sequence[Found], dialect: str) -> None:
    """Write a table with hidden columns as a query of the others.

    `customer AS c` becomes `(SELECT id, name FROM customer) AS c`: whatever the statement does with
    it, no other column is there.

    Raises:
        StatementRefused: the table stands where a query cannot.
    """
    for item in found:
        if item.table is None or not item.table.hidden_columns:
            continue
        if not item.table.columns:
            raise StatementRefused(
                "access",
                f"no column of {item.table.full_name} may be read.",
                remedy="Ask for access, or leave the table out.",
            )
        if isinstance(item.node, exp.Column):
            inner = _visible_part(item.table, dialect, _as_table(item.node))
            item.node.parent.set("field", None)  # type: ignore[union-attr]
            item.node.parent.set("query", exp.Subquery(this=inner))  # type: ignore[union-attr]
            continue
        _replace_by_query(item.node, item.table, dialect)


def check_hidden_columns(tree: exp.Expr, dialect: str, found: Sequence[Found]) -> None:
    """Say what may be read to whoever names a column that may not.

    Only for the message: `hide_columns` is what keeps them hidden.

    Raises:
        StatementRefused: a column's name is a hidden one's, and nothing else's here.
    """
    partial = [item.table for item in found if item.table and item.table.hidden_columns]
    if not partial:
        return
    visible = {
        column.name.casefold() for item in found if item.table for column in item.table.columns
    }
    visible |= {node.name.casefold() for node in tree.find_all(exp.Identifier) if _defines(node)}
    for column in tree.find_all(exp.Column):
        name = column.name.casefold()
        if name in visible or not isinstance(column.this, exp.Identifier):
            continue
        for table in partial:
            if name in {hidden.casefold() for hidden in table.hidden_columns}:
                shown = ", ".join(item.name for item in table.columns[:20])
                raise StatementRefused(
                    "access",
                    f"{table.full_name} has no column {column.name} that may be read.",
                    remedy=f"Columns of {table.full_name} that may be read: {shown}.",
                )


def quote_from_catalogue(tree: exp.Expr, dialect: str, schema: Schema) -> None:
    """Quote unquoted names that mean something else, or nothing, without quotes.

    `SELECT Name FROM Singer` on a PostgreSQL table "Singer" gets the catalogue's spelling, and an
    alias called `update` its quotes. A name in two spellings is left to the database.
    """
    aliases = {
        alias.name.casefold(): frozenset({alias.name})
        for node in tree.find_all(exp.Alias, exp.TableAlias, exp.CTE)
        if isinstance(alias := node.args.get("alias") or node.this, exp.Identifier)
    }
    for node in tree.find_all(exp.Identifier):
        if node.args.get("quoted"):
            continue
        key = node.name.casefold()
        known = schema.spellings.get(key) or aliases.get(key, frozenset())
        if dialect == "postgres" and node.name.lower() in known:
            known = frozenset({node.name.lower()})
        if len(known) == 1 and must_be_quoted(name := next(iter(known)), dialect):
            node.set("this", name)
            node.set("quoted", True)


def _table_names(tree: exp.Expr) -> Iterator[Named]:
    """Every place that reads a table by its name."""
    for listed in tree.find_all(exp.In):
        field = listed.args.get("field")
        if isinstance(field, exp.Column):
            yield field
        elif field is not None:
            raise StatementRefused(
                "catalogue",
                f"{field.sql()} is not a list.",
                remedy="Write IN (…) with a list or a SELECT.",
            )
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier):
            yield table
        elif table.this is not None and not isinstance(table.this, exp.Func):
            raise StatementRefused(
                "catalogue",
                f"{table.sql()} is not the name of a table.",
                remedy="Name a table, at most with its schema.",
            )


def _parts(node: Named) -> tuple[str, str | None, str]:
    """Name, schema and database."""
    if isinstance(node, exp.Column):
        return node.name, node.table or None, node.db
    return node.name, node.db or None, node.catalog


def lookup_table(node: Named, dialect: str, schema: Schema) -> Table | None:
    """The table of the catalogue that a name means, where it means no WITH query."""
    name, owner, database = _parts(node)
    if database:
        return None
    if dialect == "postgres":
        # Without quotes PostgreSQL lowers a name, and prefers it so when there are both.
        identifiers = (node.this, node.args.get("table" if isinstance(node, exp.Column) else "db"))
        lowered = tuple(
            part.name if part.args.get("quoted") else part.name.lower()
            for part in identifiers
            if isinstance(part, exp.Identifier)
        )
        found = schema.table(lowered[0], lowered[1] if len(lowered) > 1 else None)
        if found is not None:
            return found
    return schema.table(name, owner)


def _unknown_table(node: Named, schema: Schema) -> StatementRefused:
    name = ".".join(part for part in reversed(_parts(node)) if part)
    known = {table.full_name.casefold(): table.full_name for table in schema.tables}
    near = get_close_matches(name.casefold(), known, n=3, cutoff=0.5)
    listed = [known[item] for item in near] or [table.full_name for table in schema.tables[:12]]
    remedy = f"Tables that pass: {', '.join(listed)}." if listed else "The database is empty."
    if schema.is_restricted:
        # The same for a table that is not there, so that names cannot be tried out.
        return StatementRefused(
            "access",
            f"there is no table {name} that may be read.",
            remedy=remedy if listed else "Ask for access: no table of this database may be read.",
        )
    return StatementRefused("catalogue", f"there is no table {name}.", remedy=remedy)


def cte_of(table: Named, dialect: str) -> exp.CTE | None:
    """The WITH query that a table's name means where it stands; None where it means a table.

    A query in a WITH list sees those before it. Under RECURSIVE it sees itself: anywhere in
    PostgreSQL, which shows it those after it too, elsewhere only behind its UNION (to DuckDB,
    `WITH RECURSIVE t AS (SELECT * FROM t)` reads the table). SQLite makes no such differences.
    Getting this wrong would let `WITH pg_authid AS (SELECT * FROM pg_authid) …` read the table.
    """
    _, owner, database = _parts(table)
    if owner or database:
        return None
    below: exp.Expr = table
    above = table.parent
    while above is not None:
        if isinstance(above, exp.With):
            is_recursive = bool(above.args.get("recursive"))
            sees_all = dialect == "sqlite" or (is_recursive and dialect == "postgres")
            for cte in _queries_of(above):
                if cte is below and not sees_all:
                    sees_itself = is_recursive and _is_behind_union(table, cte)
                    if sees_itself and _is_called(cte, table, dialect):
                        return cte
                    break
                if _is_called(cte, table, dialect):
                    return cte
        else:
            with_ = above.args.get("with_")
            if isinstance(with_, exp.With) and with_ is not below:
                for cte in _queries_of(with_):
                    if _is_called(cte, table, dialect):
                        return cte
        below, above = above, above.parent
    return None


def _queries_of(with_: exp.With) -> list[exp.CTE]:
    return [item for item in with_.expressions if isinstance(item, exp.CTE)]


def _is_behind_union(node: exp.Expr, cte: exp.Expr) -> bool:
    """Whether a node stands in the last part of a WITH query's UNION: its recursive part."""
    union = cte.this
    return isinstance(union, exp.SetOperation) and any(
        above is union.expression for above in (node, *_ancestors(node))
    )


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _is_called(cte: exp.Expr, table: Named, dialect: str) -> bool:
    alias = cte.args.get("alias")
    name = alias.this if isinstance(alias, exp.TableAlias) else alias
    return isinstance(name, exp.Identifier) and same_name(
        table.this, name.name, is_quoted=bool(name.args.get("quoted")), dialect=dialect
    )


def _identifier(name: str, dialect: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=must_be_quoted(name, dialect))


def _defines(node: exp.Identifier) -> bool:
    """Whether an identifier names something new: an alias, a column of a WITH or of a table."""
    return isinstance(node.parent, exp.Alias | exp.TableAlias | exp.PropertyEQ)


def _as_table(column: exp.Column) -> exp.Table:
    return exp.Table(this=column.this.copy(), db=column.args.get("table"))


def _visible_part(table: Table, dialect: str, source: exp.Table) -> exp.Select:
    columns = [exp.column(_identifier(item.name, dialect)) for item in table.columns]
    return exp.Select(expressions=columns).from_(source, copy=False)


def _replace_by_query(node: exp.Table, table: Table, dialect: str) -> None:
    clauses = {
        key: value for key, value in node.args.items() if value and key not in ("this", "db")
    }
    if unexpected := sorted(set(clauses) - _CLAUSES_OF_A_QUERY):
        raise StatementRefused(
            "access",
            f"{table.full_name} cannot be read with {', '.join(unexpected).upper()} here.",
            remedy="Name the table, with at most an alias.",
        )
    name = node.this.copy()
    source = exp.Table(this=node.this, db=node.args.get("db"))
    clauses.setdefault("alias", exp.TableAlias(this=name))
    _drop_schema_of_columns(node, name.name)
    node.replace(exp.Subquery(this=_visible_part(table, dialect, source), **clauses))


def _drop_schema_of_columns(node: exp.Table, name: str) -> None:
    """`main.customer.city` means nothing once `customer` is the name of a query."""
    scope = node.find_ancestor(exp.Select)
    for column in scope.find_all(exp.Column) if scope is not None else ():
        if column.args.get("db") is not None and column.table.casefold() == name.casefold():
            column.set("db", None)
