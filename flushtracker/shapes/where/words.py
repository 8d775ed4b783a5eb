"""Words that are not plain names in PostgreSQL, and the types that a ``where`` may cast to."""

from typing import Final

from flushtracker.shapes.where import sql_values

RESERVED: Final = frozenset(
    ["all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "both", "case", "cast", "check",
     "collate", "column", "constraint", "create", "current_catalog", "current_date", "current_role", "current_time",
     "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except",
     "false", "fetch", "for", "foreign", "from", "grant", "group", "having", "in", "initially", "intersect", "into",
     "lateral", "leading", "limit", "localtime", "localtimestamp", "not", "null", "offset", "on", "only", "or",
     "order", "placing", "primary", "references", "returning", "select", "session_user", "some", "symmetric",
     "system_user", "table", "then", "to", "trailing", "true", "union", "unique", "user", "using", "variadic", "when",
     "where", "window", "with", "authorization", "binary", "collation", "concurrently", "cross", "current_schema",
     "freeze", "full", "ilike", "inner", "is", "isnull", "join", "left", "like", "natural", "notnull", "outer",
     "overlaps", "right", "similar", "tablesample", "verbose", "between"]
)  # fmt: skip
"""Words that not every supported version accepts as an unquoted column name; ``between`` not after NOT."""

SESSION_VALUES: Final = frozenset(
    ["user", "session_user", "current_user", "system_user", "current_role", "current_catalog", "current_schema",
     "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)  # fmt: skip
"""Unquoted, these are session values, not columns."""

NOT_TYPES: Final = frozenset(
    ["bit", "char", "character", "coalesce", "exists", "extract", "greatest", "grouping", "inout", "json", "json_array",
     "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query", "json_scalar", "json_serialize",
     "json_table", "json_value", "least", "merge_action", "national", "nchar", "none", "normalize", "nullif", "out",
     "overlay", "position", "precision", "row", "setof", "substring", "treat", "trim", "values", "xmlattributes",
     "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot",
     "xmlserialize", "xmltable"]
)  # fmt: skip
"""Valid column names, but not names of user types, or types that have a length even without one."""

TYPES: Final = {
    "bigint": sql_values.INT8,
    "bool": sql_values.BOOLEAN,
    "boolean": sql_values.BOOLEAN,
    "char varying": sql_values.VARCHAR,
    "character varying": sql_values.VARCHAR,
    "date": sql_values.DATE,
    "dec": sql_values.NUMERIC,
    "decimal": sql_values.NUMERIC,
    "double precision": sql_values.FLOAT8,
    "float": sql_values.FLOAT8,
    "float4": sql_values.FLOAT4,
    "float8": sql_values.FLOAT8,
    "int": sql_values.INT4,
    "int2": sql_values.INT2,
    "int4": sql_values.INT4,
    "int8": sql_values.INT8,
    "integer": sql_values.INT4,
    "interval": sql_values.INTERVAL,
    "numeric": sql_values.NUMERIC,
    "real": sql_values.FLOAT4,
    "smallint": sql_values.INT2,
    "text": sql_values.TEXT,
    "time": sql_values.TIME,
    "time without time zone": sql_values.TIME,
    "timestamp": sql_values.TIMESTAMP,
    "timestamp with time zone": sql_values.TIMESTAMPTZ,
    "timestamp without time zone": sql_values.TIMESTAMP,
    "timestamptz": sql_values.TIMESTAMPTZ,
    "uuid": sql_values.UUID,
    "varchar": sql_values.VARCHAR,
}

CATALOG_TYPES: Final = frozenset(
    ["bool", "date", "float4", "float8", "int2", "int4", "int8", "interval", "numeric", "text", "time", "timestamp",
     "timestamptz", "uuid", "varchar"]
)  # fmt: skip
"""The type names that the catalog has, which may be quoted; "integer", for example, is not among them."""
