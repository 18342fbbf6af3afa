"""Types that a PostgreSQL statement may name: some look names up in the catalogue.

`'salary'::regclass` fails exactly when there is no such table, and every table is a type, so that
`NULL::salary` does, too: whoever may not read a table would learn that it is there.
"""

from __future__ import annotations

import re

from sqlglot import exp

from hexprefect.text2sql.errors import StatementRefused

_OF_THE_CATALOGUE = re.compile(r"reg[a-z]+\Z")
"""regclass, regproc, regtype, regrole and their kind: all that begin so."""
_FOR_TEXT_SEARCH = frozenset({"regconfig", "regdictionary"})
_VALUES = frozenset(
    {
        # https://www.postgresql.org/docs/current/datatype.html, and what sqlglot calls them
        "bigint", "bigserial", "bit", "bit varying", "bool", "boolean", "box", "bpchar", "bytea",
        "char", "character", "character varying", "cidr", "circle", "date", "datemultirange",
        "daterange", "decimal", "double precision", "float", "float4", "float8", "inet", "int",
        "int2", "int4", "int4multirange", "int4range", "int8", "int8multirange", "int8range",
        "integer", "interval", "json", "jsonb", "jsonpath", "line", "lseg", "macaddr", "macaddr8",
        "money", "name", "numeric", "nummultirange", "numrange", "oid", "path", "pg_lsn",
        "point", "polygon", "real", "smallint", "text", "tid", "time", "timestamp", "timestamptz",
        "timetz", "tsmultirange", "tsquery", "tsrange", "tstzmultirange", "tstzrange", "tsvector",
        "unknown", "uuid", "varbit", "varchar", "xid", "xml",
        # of well-known extensions
        "citext", "geography", "geometry", "halfvec", "hstore", "ltree", "vector",
        *_FOR_TEXT_SEARCH,
    }
)  # fmt: skip


def check_type(node: exp.Expr, *, is_restricted: bool) -> None:
    """Let a node of a PostgreSQL statement through that names no type, or one that may be named.

    Args:
        node: of the statement's tree.
        is_restricted: whether there may be tables that the statement must not learn of.

    Raises:
        StatementRefused: it asks the catalogue.
    """
    if isinstance(node, exp.Anonymous) and node.name.casefold() == "pg_typeof":
        _check_type_of(node)
    if not isinstance(node, exp.DataType | exp.ObjectIdentifier | exp.PseudoType):
        return
    if isinstance(node, exp.DataType) and node.is_type(exp.DType.ARRAY):
        return  # What it is an array of has its turn.
    name, owner = _name(node)
    looks_up = _OF_THE_CATALOGUE.match(name) and name not in _FOR_TEXT_SEARCH
    is_hidden = is_restricted and name not in _VALUES and owner != "pg_catalog"
    if looks_up or is_hidden:
        raise StatementRefused(
            "type",
            f"the type {name} may tell of what is in the catalogue.",
            remedy="Use a type of values, such as text, integer, numeric or date.",
        )


def _check_type_of(call: exp.Anonymous) -> None:
    """What pg_typeof gives is a regtype, and makes one of every text that it is compared with."""
    cast = call.parent
    if not (isinstance(cast, exp.Cast) and cast.this is call and cast.to.is_type("text")):
        raise StatementRefused(
            "type", "pg_typeof gives a regtype.", remedy="Write pg_typeof(…)::text."
        )


def _name(node: exp.Expr) -> tuple[str, str]:
    """Name and schema of a type, without its precision."""
    kind = node.args.get("kind")
    if isinstance(kind, exp.Dot):
        return kind.expression.name.casefold(), kind.this.name.casefold()
    if isinstance(kind, exp.Identifier):
        return kind.name.casefold(), ""
    written = node.sql("postgres") if kind is None else str(kind)
    name = written.partition("(")[0].strip().strip('"').casefold()
    return ("interval" if name.startswith("interval ") else name), ""
