"""Which functions a statement may call, for each dialect.

An allow-list: what is not named here is refused, because extensions and user-defined functions can
do anything. Functions that sqlglot knows by a class of their own (COUNT, COALESCE, …) are standard
and pass unless they are named in `FORBIDDEN`.
"""

from __future__ import annotations

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
        "table_to_xml", "schema_to_xml", "database_to_xml", "ts_stat", "ts_rewrite",
        # Settings, sessions, locks, sequences and the server itself.
        "set_config", "current_setting", "pg_sleep", "pg_sleep_for", "pg_sleep_until", "sleep",
        "benchmark", "pg_terminate_backend", "pg_cancel_backend", "pg_reload_conf",
        "pg_rotate_logfile", "pg_advisory_lock", "pg_advisory_xact_lock", "pg_try_advisory_lock",
        "pg_notify", "nextval", "setval", "pg_switch_wal", "pg_create_restore_point",
        "pg_logical_emit_message", "pg_export_snapshot", "txid_current", "pg_current_xact_id",
        "get_lock", "release_lock",
    }
)  # fmt: skip

_SQLITE = frozenset(
    {
        # https://sqlite.org/lang_corefunc.html
        "abs", "changes", "char", "coalesce", "concat", "concat_ws", "format", "glob", "hex", "if",
        "ifnull", "iif", "instr", "last_insert_rowid", "length", "like", "likelihood", "likely",
        "lower", "ltrim", "max", "min", "nullif", "octet_length", "printf", "quote", "random",
        "randomblob", "replace", "round", "rtrim", "sign", "soundex", "sqlite_version", "substr",
        "substring", "total_changes", "trim", "typeof", "unhex", "unicode", "unlikely", "upper",
        "zeroblob",
        # https://sqlite.org/lang_datefunc.html
        "date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff",
        # https://sqlite.org/lang_aggfunc.html and windowfunctions.html
        "avg", "count", "group_concat", "string_agg", "sum", "total", "median", "percentile",
        "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead",
        "first_value", "last_value", "nth_value",
        # https://sqlite.org/lang_mathfunc.html
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "ceiling", "cos",
        "cosh", "degrees", "exp", "floor", "ln", "log", "log10", "log2", "mod", "pi", "pow",
        "power", "radians", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
        # https://sqlite.org/json1.html
        "json", "json_array", "json_array_length", "json_extract", "json_object", "json_quote",
        "json_type", "json_valid", "json_group_array", "json_group_object", "json_each",
        "json_tree",
        # https://sqlite.org/fts5.html, https://sqlite.org/series.html
        "bm25", "highlight", "snippet", "generate_series",
    }
)  # fmt: skip

_POSTGRES = frozenset(
    {
        # https://www.postgresql.org/docs/current/functions.html, the chapters on values
        "abs", "age", "acos", "asin", "atan", "atan2", "array_agg", "array_append", "array_length",
        "array_position", "array_positions", "array_prepend", "array_remove", "array_replace",
        "array_to_json", "array_to_string", "array_upper", "array_lower", "ascii", "avg",
        "bit_and", "bit_or", "bit_length", "bool_and", "bool_or", "btrim", "cardinality", "cbrt",
        "ceil", "ceiling", "char_length", "character_length", "chr", "clock_timestamp", "coalesce",
        "concat", "concat_ws", "convert_from", "corr", "cos", "cot", "count", "covar_pop",
        "covar_samp", "cume_dist", "date", "date_bin", "date_part", "date_trunc", "decode",
        "degrees", "dense_rank", "div", "encode", "every", "exp", "extract", "factorial",
        "first_value", "floor", "format", "gcd", "generate_series", "generate_subscripts",
        "greatest", "grouping", "initcap", "isfinite", "json_agg", "json_array_elements",
        "json_array_elements_text", "json_array_length", "json_build_array", "json_build_object",
        "json_each", "json_each_text", "json_extract_path", "json_extract_path_text",
        "json_object", "json_object_agg", "json_object_keys", "json_strip_nulls", "json_typeof",
        "jsonb_agg", "jsonb_array_elements", "jsonb_array_elements_text", "jsonb_array_length",
        "jsonb_build_array", "jsonb_build_object", "jsonb_each", "jsonb_each_text",
        "jsonb_extract_path", "jsonb_extract_path_text", "jsonb_object", "jsonb_object_agg",
        "jsonb_object_keys", "jsonb_path_exists", "jsonb_path_match", "jsonb_path_query",
        "jsonb_path_query_array", "jsonb_path_query_first", "jsonb_pretty", "jsonb_strip_nulls",
        "jsonb_typeof", "justify_days", "justify_hours", "justify_interval", "lag", "last_value",
        "lcm", "lead", "least", "left", "length", "ln", "localtime", "localtimestamp", "log",
        "log10", "lower", "lpad", "ltrim", "make_date", "make_interval", "make_time",
        "make_timestamp", "make_timestamptz", "max", "md5", "min", "mod", "mode", "normalize",
        "now", "nth_value", "ntile", "nullif", "num_nonnulls", "num_nulls", "octet_length",
        "overlay", "percent_rank", "percentile_cont", "percentile_disc", "pi", "plainto_tsquery",
        "phraseto_tsquery", "position", "power", "quote_literal", "radians", "random", "rank",
        "regexp_count", "regexp_instr", "regexp_like", "regexp_match", "regexp_matches",
        "regexp_replace", "regexp_split_to_array", "regexp_split_to_table", "regexp_substr",
        "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope",
        "regr_sxx", "regr_sxy", "regr_syy", "repeat", "replace", "reverse", "right", "round",
        "row_number", "row_to_json", "rpad", "rtrim", "scale", "sign", "similarity", "sin",
        "split_part", "sqrt", "starts_with", "statement_timestamp", "stddev", "stddev_pop",
        "stddev_samp", "string_agg", "string_to_array", "string_to_table", "strpos", "substr",
        "substring", "sum", "tan", "to_char", "to_date", "to_hex", "to_json", "to_jsonb",
        "to_number", "to_timestamp", "to_tsquery", "to_tsvector", "transaction_timestamp",
        "translate", "trim", "trim_scale", "trunc", "ts_headline", "ts_rank", "ts_rank_cd",
        "unaccent", "unnest", "upper", "var_pop", "var_samp", "variance", "websearch_to_tsquery",
        "width_bucket", "word_similarity", "lower_inc", "upper_inc", "isempty", "range_merge",
        "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange", "sha256",
        "gen_random_uuid", "abbrev", "host", "masklen", "netmask", "network", "pg_typeof",
    }
)  # fmt: skip

ALLOWED: dict[str, frozenset[str]] = {"sqlite": _SQLITE, "postgres": _POSTGRES}
