"""What a statement may call on PostgreSQL: functions on values, not on the server."""

from __future__ import annotations

POSTGRES_FUNCTIONS = frozenset(
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
