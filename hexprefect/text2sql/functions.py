"""Which functions a statement may call, for each dialect.

An allow-list: what is not named is refused, because extensions and user-defined functions can do
anything. A function that sqlglot knows by a class of its own is held to the name that the dialect
writes for it, so that nothing passes for being known to another database.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from sqlglot import exp

from hexprefect.text2sql.dialects.duckdb_functions import DUCKDB_FUNCTIONS
from hexprefect.text2sql.dialects.mysql_functions import MYSQL_FUNCTIONS
from hexprefect.text2sql.dialects.postgresql_functions import POSTGRES_FUNCTIONS
from hexprefect.text2sql.dialects.sqlite_functions import SQLITE_FUNCTIONS
from hexprefect.text2sql.errors import StatementRefused

FORBIDDEN = frozenset(
    {
        # Files, the network and other programs.
        "load_extension", "readfile", "writefile", "edit", "eval", "fts3_tokenizer", "lsdir",
        "fsdir", "zipfile", "pg_read_file", "pg_read_binary_file", "pg_ls_dir", "pg_stat_file",
        "lo_import", "lo_export", "lo_get", "lo_put", "lo_create", "lo_unlink", "dblink",
        "dblink_exec", "dblink_connect", "read_csv", "read_parquet", "read_json", "read_text",
        "load_file", "into_outfile",
        # SQL in a string: what it holds was never checked.
        "query_to_xml", "query_to_xmlschema", "query_to_xml_and_xmlschema", "cursor_to_xml",
        "table_to_xml", "schema_to_xml", "database_to_xml", "ts_stat", "ts_rewrite", "query",
        "query_table", "json_execute_serialized_sql",
        # What is in the catalogue.
        "to_regclass", "to_regcollation", "to_regnamespace", "to_regoper", "to_regoperator",
        "to_regproc", "to_regprocedure", "to_regrole", "to_regtype", "to_regtypemod",
        # Settings, sessions, locks, sequences and the server itself.
        "set_config", "current_setting", "getvariable", "pg_sleep", "pg_sleep_for",
        "pg_sleep_until", "sleep", "sleep_ms", "benchmark", "pg_terminate_backend",
        "pg_cancel_backend", "pg_reload_conf", "pg_rotate_logfile", "pg_advisory_lock",
        "pg_advisory_xact_lock", "pg_try_advisory_lock", "pg_notify", "nextval", "setval",
        "next_value_for", "pg_switch_wal", "pg_create_restore_point", "pg_logical_emit_message",
        "pg_export_snapshot", "txid_current", "pg_current_xact_id", "get_lock", "release_lock",
        "is_free_lock", "master_pos_wait", "setseed", "write_log", "enable_logging",
    }
)  # fmt: skip
"""Refused whatever else is said about them: a second hand on the lists of what is allowed."""

ALLOWED: dict[str, frozenset[str]] = {
    "sqlite": SQLITE_FUNCTIONS,
    "postgres": POSTGRES_FUNCTIONS,
    "duckdb": DUCKDB_FUNCTIONS,
    "mysql": MYSQL_FUNCTIONS,
}

_SYNTAX = frozenset(
    {
        # What sqlglot keeps as functions and the dialects as syntax.
        "all", "and", "any", "array", "case", "cast", "collate", "columns", "convert", "exists",
        "extract", "in", "interval", "lateral", "not", "or", "overlay", "position", "rows",
        "struct", "substring", "trim", "try_cast", "unnest", "values", "xor", "coalesce", "nullif",
        "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp",
        "match", "xmlelement", "json_object", "json_array", "json_objectagg", "json_arrayagg",
        "json_exists", "json_value", "greatest", "least", "if", "iif", "distinct", "percentile",
    }
)  # fmt: skip
_CALL = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_$]*)\s*\(")


def check_function(node: exp.Func, dialect: str) -> None:
    """Let a function of a statement's tree through, or refuse it.

    Raises:
        StatementRefused: the dialect's allow-list does not name it; with near names that pass.
    """
    if isinstance(node.parent, exp.Dot) and node.parent.expression is node:
        _check_qualifier(node.parent, dialect)
    names = called_names(node, dialect)
    allowed = ALLOWED.get(dialect, frozenset())
    if not names & FORBIDDEN and names <= allowed | _SYNTAX:
        return
    refused = sorted(names - allowed - _SYNTAX | names & FORBIDDEN)
    near = get_close_matches(refused[0], allowed, n=3)
    remedy = f"Near names that pass: {', '.join(near)}." if near else "Use a built-in function."
    raise StatementRefused(
        "function", f"the function {refused[0]} is not allowed in {dialect}.", remedy=remedy
    )


def is_allowed_name(name: str, dialect: str) -> bool:
    """Whether a call of a function of this name would pass."""
    if name == "pg_typeof":
        return False  # Only as a call, whose place can be looked at.
    return name not in FORBIDDEN and name in ALLOWED.get(dialect, frozenset()) | _SYNTAX


def called_names(node: exp.Func, dialect: str) -> set[str]:
    """The name that a statement calls; none for what is written as an operator or a keyword."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return {node.name.casefold()}
    written = _CALL.match(node.sql(dialect=dialect, comments=False, normalize_functions=False))
    names = {name.casefold() for name in node.sql_names()} & FORBIDDEN
    return names | ({written[1].casefold()} if written else set())


def _check_qualifier(call: exp.Dot, dialect: str) -> None:
    qualified = call.sql(dialect=dialect)
    if dialect == "postgres" and qualified.casefold().startswith("pg_catalog."):
        return
    raise StatementRefused(
        "function",
        f"the function {qualified.partition('(')[0]} belongs to a schema.",
        remedy="Use a built-in function by its bare name.",
    )
