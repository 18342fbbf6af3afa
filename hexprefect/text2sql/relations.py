"""What stands in the FROM of a PostgreSQL statement: its name, and the columns it is sure to have.

Read as PostgreSQL reads it, and never more generously: a column that only seems to be there would
be a call of a function (see `hexprefect.text2sql.columns`).
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from hexprefect.text2sql.functions import called_names
from hexprefect.text2sql.resolution import cte_of, lookup_table
from hexprefect.text2sql.schema import Schema

SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})
"""Every table has them, no view."""
_NAME_BYTES = 63
"""PostgreSQL cuts off what a name has beyond them."""
_MOST_COLUMNS = 1_664
"""Of a result in PostgreSQL."""
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_FUNCTION_COLUMNS = {
    **{f"{kind}_array_elements{text}": ("value",) for kind in ("json", "jsonb")
       for text in ("", "_text")},
    **{f"{kind}_each{text}": ("key", "value") for kind in ("json", "jsonb")
       for text in ("", "_text")},
}  # fmt: skip
_SETS_OF_SCALARS = frozenset(
    {
        "generate_series", "generate_subscripts", "regexp_matches", "regexp_split_to_table",
        "string_to_table", "json_object_keys", "jsonb_object_keys", "jsonb_path_query",
    }
)  # fmt: skip
"""Their one column is called as they are; that of other functions may be a row."""
_ARRAYS_OF_TEXT = frozenset({"string_to_array", "regexp_split_to_array", "regexp_match"})


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a relation, in its order."""

    names: tuple[str | None, ...]
    """None for an expression that the statement gives no name."""
    is_complete: bool = True
    """Whether these are all, and in order; else there are others among them."""
    of_table: bool = False
    """Whether it has a table's system columns."""

    def has(self, name: exp.Identifier) -> bool:
        """Whether a name is certain to be a column."""
        known = {*self.names, *(SYSTEM_COLUMNS if self.of_table else ())}
        return possible_names(name) <= known

    def certainly_lacks(self, name: exp.Identifier) -> bool:
        """Whether a name is certain to be no column."""
        return (
            self.is_complete
            and None not in self.names
            and not possible_names(name) & {*self.names, *SYSTEM_COLUMNS}
        )

    def renamed(self, aliases: Sequence[str]) -> Columns:
        """With an alias for each of the first; the rest is called as before."""
        if not aliases:
            return self
        rest = self.names[len(aliases) :] if self.is_complete else ()
        return Columns((*aliases, *rest), self.is_complete, self.of_table)


UNKNOWN = Columns((), is_complete=False)


def possible_names(identifier: exp.Identifier) -> frozenset[str]:
    """What PostgreSQL may read: how it lowers other letters than ASCII's depends on the server."""
    name = identifier.name
    read = (
        (name,) if identifier.args.get("quoted") else (name.translate(_ASCII_LOWER), name.lower())
    )
    return frozenset(_cut(item) for item in read)


def called(item: exp.Expr) -> exp.Identifier | None:
    """What a statement calls something in its FROM; None where it has no name."""
    alias = item.args.get("alias")
    name = alias.this if isinstance(alias, exp.TableAlias) and alias.this else item.this
    if isinstance(name, exp.Identifier):
        return name
    function = item if isinstance(item, exp.Unnest) else name
    names = called_names(function, "postgres") if isinstance(function, exp.Func) else set()
    return exp.to_identifier(min(names), quoted=True) if names else None


def items_of_query(query: exp.Select) -> Iterator[exp.Expr]:
    """Everything in the FROM of a query that its other clauses can name."""
    if (source := query.args.get("from_")) is not None:
        yield from items_in(source.this)
    for join in (*query.args.get("joins", ()), *query.args.get("laterals", ())):
        yield from items_in(join.this if isinstance(join, exp.Join) else join)


def items_in(item: exp.Expr, *, within_names: bool = False) -> Iterator[exp.Expr]:
    """An entry of a FROM with what is joined to it inside.

    Args:
        item: the entry.
        within_names: also what a join in brackets hides behind its alias.
    """
    yield from _itself(item, within_names=within_names)
    for join in item.args.get("joins") or ():
        yield from items_in(join.this, within_names=within_names)


def joined_by(owner: exp.Expr, last: exp.Join) -> Iterator[exp.Expr]:
    """What the ON of a join can name: everything since the last comma before it.

    Args:
        owner: the query, or the entry of its FROM, that holds the join.
        last: the join.
    """
    is_query = isinstance(owner, exp.Select)
    found = list(items_in(owner.args["from_"].this) if is_query else _itself(owner))
    for join in owner.args["joins"]:
        if not any(join.args.get(key) for key in ("on", "using", "kind", "method", "side")):
            found = []
        found += items_in(join.this)
        if join is last:
            break
    yield from found


class Relations:
    """Columns of what stands in the FROMs of one statement.

    Args:
        schema: the catalogue that its tables are in.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[int, Columns] = {}
        """By the identity of a query, which lives as long as its statement."""

    def columns(self, item: exp.Expr) -> Columns:
        """Columns of an entry of a FROM, under the names that its alias gives them."""
        own = self._columns(item)
        alias = item.args.get("alias")
        given = _names(alias.args.get("columns") or ()) if alias is not None else ()
        if isinstance(item, exp.Unnest) and item.args.get("offset"):
            offset = item.args["offset"]
            given = (*given, *_names([offset] if isinstance(offset, exp.Identifier) else ()))
        return own.renamed(given)

    def is_in_schema(self, item: exp.Expr, owner: exp.Identifier | None) -> bool:
        """Whether `owner.name` may mean this table when `name` does."""
        if owner is None or not isinstance(item, exp.Table):
            return owner is None
        if item.args.get("alias") is not None or cte_of(item, "postgres") is not None:
            return False
        table = lookup_table(item, "postgres", self._schema)
        asked = exp.Table(this=item.this.copy(), db=owner.copy())
        return table is not None and lookup_table(asked, "postgres", self._schema) is table

    def _columns(self, item: exp.Expr) -> Columns:
        match item:
            case exp.Table(this=exp.Identifier()):
                return self._of_table(item)
            case exp.Table(this=exp.Func()) | exp.Lateral(this=exp.Func()):
                return columns_of_function(item.this, called(item))
            case exp.Unnest(expressions=[exp.Expr() as array]) if _holds_scalars(array):
                return _scalar(called(item))
            case exp.Subquery() if _is_join(item):
                return self._together(items_in(item.this), item.find_all(exp.Join))
            case exp.Subquery() | exp.Lateral(this=exp.Subquery()):
                return self._of_query(item.this)
            case exp.Values():
                return self._of_query(item)
        return UNKNOWN

    def _of_table(self, item: exp.Table) -> Columns:
        cte = cte_of(item, "postgres")
        if cte is not None:
            return self._of_query(cte.this).renamed(_names(cte.args["alias"].columns))
        table = lookup_table(item, "postgres", self._schema)
        if table is None:
            return UNKNOWN
        names = tuple(column.name for column in table.columns)
        return Columns(names, not table.hidden_columns, of_table=not table.is_view)

    def _of_query(self, query: exp.Expr) -> Columns:
        """Columns of a result; nothing certain of a WITH query that is read by itself."""
        if (known := self._known.get(id(query))) is not None:
            return known
        self._known[id(query)] = UNKNOWN
        match query:
            case exp.Select():
                found = self._of_select(query)
            case exp.SetOperation() | exp.Subquery():
                found = self._of_query(query.this)
            case exp.Values(expressions=[exp.Tuple() as row, *_]):
                found = Columns(tuple(f"column{n + 1}" for n in range(len(row.expressions))))
            case _:
                found = UNKNOWN
        if len(found.names) > _MOST_COLUMNS:
            found = UNKNOWN
        self._known[id(query)] = found
        return found

    def _of_select(self, query: exp.Select) -> Columns:
        names: list[str | None] = []
        is_complete = True
        for projection in query.expressions:
            if isinstance(projection, exp.Star):
                columns = self._together(items_of_query(query), query.args.get("joins") or ())
            elif isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star):
                name = projection.args["table"]
                found = [
                    item
                    for item in items_of_query(query)
                    if (own := called(item)) and possible_names(own) & possible_names(name)
                ]
                columns = self.columns(found[0]) if len(found) == 1 else UNKNOWN
            elif isinstance(projection, exp.Dot) and isinstance(projection.expression, exp.Star):
                columns = UNKNOWN
            else:
                columns = Columns((self._name_of(projection),))
            names += columns.names
            is_complete = is_complete and columns.is_complete
        return Columns(tuple(names), is_complete)

    def _together(self, items: Iterable[exp.Expr], joins: Iterable[exp.Join]) -> Columns:
        found = [self.columns(item) for item in items]
        # USING and NATURAL put what they join by before everything else.
        in_order = not any(join.args.get("using") or join.args.get("method") for join in joins)
        names = tuple(name for columns in found for name in columns.names)
        return Columns(names, in_order and all(columns.is_complete for columns in found))

    def _name_of(self, projection: exp.Expr) -> str | None:
        """The name of a column of a result: its alias, or what PostgreSQL takes from the value."""
        match projection:
            case exp.Alias():
                return folded(projection.args["alias"])
            case exp.Column(this=exp.Identifier()):
                return folded(projection.this)
            case exp.Dot(expression=exp.Identifier()):
                return folded(projection.expression)
            case exp.Paren() | exp.Collate() | exp.Bracket():
                return self._name_of(projection.this)
            case exp.Cast(this=exp.Column() | exp.Cast() | exp.Paren()):
                return self._name_of(projection.this)
            case exp.Subquery():
                return next(iter(self._of_query(projection.this).names), None)
        return None


def columns_of_function(function: exp.Func, name: exp.Identifier | None = None) -> Columns:
    """What a function returns as columns.

    Args:
        function: the call.
        name: what a FROM calls it; None elsewhere, where a single value has no column.
    """
    names = called_names(function, "postgres")
    for known in names:
        if known in _FUNCTION_COLUMNS:
            return Columns(_FUNCTION_COLUMNS[known])
    return _scalar(name) if names and names <= _SETS_OF_SCALARS else UNKNOWN


def folded(identifier: exp.Identifier) -> str:
    """A name as PostgreSQL keeps it."""
    name = identifier.name
    return _cut(name if identifier.args.get("quoted") else name.translate(_ASCII_LOWER))


def _scalar(name: exp.Identifier | None) -> Columns:
    return UNKNOWN if name is None else Columns((folded(name),))


def _holds_scalars(array: exp.Expr) -> bool:
    if isinstance(array, exp.Array):
        return all(isinstance(item, exp.Literal) for item in array.expressions)
    return isinstance(array, exp.Func) and (
        bool(names := called_names(array, "postgres")) and names <= _ARRAYS_OF_TEXT
    )


def _is_join(brackets: exp.Subquery) -> bool:
    """Whether brackets in a FROM hold a join, and not a query."""
    inner = brackets.this
    if isinstance(inner, exp.Select | exp.SetOperation):
        return False
    return (
        isinstance(inner, exp.Table)
        or bool(inner.args.get("joins"))
        or inner.args.get("alias") is not None
    )


def _itself(item: exp.Expr, *, within_names: bool = False) -> Iterator[exp.Expr]:
    """An entry without what is joined to it."""
    is_join = isinstance(item, exp.Subquery) and _is_join(item)
    is_named = item.args.get("alias") is not None
    if is_named or not is_join:
        yield item
    if is_join and (within_names or not is_named):
        yield from items_in(item.this, within_names=within_names)


def _names(identifiers: Iterable[exp.Expr]) -> tuple[str, ...]:
    """Names of a list of columns, which may come with their types."""
    return tuple(
        folded(item if isinstance(item, exp.Identifier) else item.this) for item in identifiers
    )


def _cut(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")
