"""What a statement may call on SQLite: reading values, making new ones, nothing else."""

from __future__ import annotations

SQLITE_FUNCTIONS = frozenset(
    {
        # https://sqlite.org/lang_corefunc.html
        "abs", "changes", "char", "coalesce", "concat", "concat_ws", "format", "glob", "hex", "if",
        "ifnull", "iif", "instr", "last_insert_rowid", "length", "like", "likelihood", "likely",
        "lower", "ltrim", "max", "min", "nullif", "octet_length", "printf", "quote", "random",
        "randomblob", "replace", "round", "rtrim", "sign", "soundex", "sqlite_version", "substr",
        "substring", "total_changes", "trim", "typeof", "unhex", "unicode", "unistr",
        "unistr_quote", "unlikely", "upper", "zeroblob",
        # https://sqlite.org/lang_datefunc.html
        "date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff",
        # https://sqlite.org/lang_aggfunc.html and windowfunctions.html
        "avg", "count", "group_concat", "string_agg", "sum", "total", "median", "percentile",
        "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead",
        "first_value", "last_value", "nth_value", "percentile_cont", "percentile_disc",
        # https://sqlite.org/lang_mathfunc.html
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "ceiling", "cos",
        "cosh", "degrees", "exp", "floor", "ln", "log", "log10", "log2", "mod", "pi", "pow",
        "power", "radians", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
        # https://sqlite.org/json1.html
        "json", "json_array", "json_array_insert", "json_array_length", "json_each",
        "json_error_position", "json_extract", "json_group_array", "json_group_object",
        "json_insert", "json_object", "json_patch", "json_pretty", "json_quote", "json_remove",
        "json_replace", "json_set", "json_tree", "json_type", "json_valid", "jsonb", "jsonb_array",
        "jsonb_array_insert", "jsonb_each", "jsonb_extract", "jsonb_group_array",
        "jsonb_group_object", "jsonb_insert", "jsonb_object", "jsonb_patch", "jsonb_remove",
        "jsonb_replace", "jsonb_set", "jsonb_tree",
        # https://sqlite.org/fts5.html, https://sqlite.org/fts3.html, https://sqlite.org/series.html
        "bm25", "highlight", "matchinfo", "offsets", "snippet", "generate_series",
    }
)  # fmt: skip
