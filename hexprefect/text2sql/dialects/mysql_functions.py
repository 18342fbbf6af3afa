"""What a statement may call on MySQL and MariaDB: functions on values, not on files or the server.

https://dev.mysql.com/doc/refman/8.4/en/built-in-function-reference.html and
https://mariadb.com/kb/en/built-in-functions/, without those that read files, wait, lock, or tell of
the server and its users.
"""

from __future__ import annotations

MYSQL_FUNCTIONS = frozenset(
    {
        # aggregates and windows
        "any_value", "avg", "bit_and", "bit_or", "bit_xor", "count", "cume_dist", "dense_rank",
        "first_value", "group_concat", "grouping", "json_arrayagg", "json_objectagg", "lag",
        "last_value", "lead", "max", "median", "min", "nth_value", "ntile", "percent_rank",
        "percentile_cont", "percentile_disc", "rank", "row_number", "std", "stddev", "stddev_pop",
        "stddev_samp", "sum", "var_pop", "var_samp", "variance",
        # numeric
        "abs", "acos", "asin", "atan", "atan2", "bit_count", "ceil", "ceiling", "conv", "cos",
        "cot", "crc32", "degrees", "exp", "floor", "greatest", "least", "ln", "log", "log10",
        "log2", "mod", "pi", "pow", "power", "radians", "rand", "round", "sign", "sin", "sqrt",
        "tan", "truncate",
        # text, patterns, bytes
        "ascii", "bin", "bit_length", "char", "char_length", "character_length", "concat",
        "concat_ws", "elt", "field", "find_in_set", "format", "from_base64", "hex", "insert",
        "instr", "lcase", "left", "length", "locate", "lower", "lpad", "ltrim", "make_set", "md5",
        "mid", "oct", "octet_length", "ord", "position", "quote", "regexp_instr", "regexp_like",
        "regexp_replace", "regexp_substr", "repeat", "replace", "reverse", "right", "rpad",
        "rtrim", "sha", "sha1", "sha2", "soundex", "space", "strcmp", "substr", "substring",
        "substring_index", "to_base64", "to_char", "trim", "ucase", "unhex", "upper",
        "weight_string", "export_set", "match", "natural_sort_key", "chr",
        # date and time
        "adddate", "addtime", "convert_tz", "curdate", "current_date", "current_time",
        "current_timestamp", "curtime", "date", "date_add", "date_format", "date_sub", "datediff",
        "day", "dayname", "dayofmonth", "dayofweek", "dayofyear", "extract", "from_days",
        "from_unixtime", "get_format", "hour", "last_day", "localtime", "localtimestamp",
        "makedate", "maketime", "microsecond", "minute", "month", "monthname", "now",
        "period_add", "period_diff", "quarter", "sec_to_time", "second", "str_to_date", "subdate",
        "subtime", "sysdate", "time", "time_format", "time_to_sec", "timediff", "timestamp",
        "timestampadd", "timestampdiff", "to_days", "to_seconds", "unix_timestamp", "utc_date",
        "utc_time", "utc_timestamp", "week", "weekday", "weekofyear", "year", "yearweek",
        # control flow, casts, values of any type
        "cast", "coalesce", "convert", "if", "ifnull", "interval", "isnull", "nullif", "nvl",
        "nvl2", "inet_aton", "inet_ntoa", "inet6_aton", "inet6_ntoa", "is_ipv4",
        "is_ipv6", "bin_to_uuid", "is_uuid", "uuid", "uuid_to_bin", "binary",
        # JSON
        "json_array", "json_array_append", "json_array_insert", "json_compact", "json_contains",
        "json_contains_path", "json_depth", "json_detailed", "json_exists", "json_extract",
        "json_insert", "json_keys", "json_length", "json_loose", "json_merge_patch",
        "json_merge_preserve", "json_object", "json_overlaps", "json_pretty", "json_query",
        "json_quote", "json_remove", "json_replace", "json_search", "json_set", "json_table",
        "json_type", "json_unquote", "json_valid", "json_value", "member",
    }
)  # fmt: skip
