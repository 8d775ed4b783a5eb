"""``Names``: reads the names of a ``where``: columns, tables and types."""

from dataclasses import replace
from typing import Final, NoReturn

from flushtracker.shapes.builtin_types import NAMES
from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.tokens import QUERY_FORM, Token, malformed, refused, tokenize, unexpected
from flushtracker.shapes.where.tree import EnumName
from flushtracker.wal.changes import TableName

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

CATALOG_TYPES: Final = frozenset(name for name, oid in TYPES.items() if NAMES[oid] == name)
"""The type names that the catalog has, which may be quoted; "integer", for example, is not among them."""


_LONGEST_TYPE: Final = 4
"""The number of words in the longest type name."""


class Names:
    """The tokens of a condition and the read position; tables without a schema are in ``schema``, if given."""

    def __init__(self, text: str, schema: str | None = None) -> None:
        self._text = text
        self._schema = schema
        self._tokens = tokenize(text)
        self._at = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    @property
    def after(self) -> Token:
        return self._ahead(1)

    def take(self) -> Token:
        token = self.next
        if token.kind == "end":
            self.unexpected()
        self._at += 1
        return token

    def skip_symbol(self, symbol: str) -> bool:
        """Take the next token if it is this symbol."""
        if is_next := self.next.is_symbol(symbol):
            self._at += 1
        return is_next

    def skip_word(self, word: str) -> bool:
        if is_next := self.next.is_word(word):
            self._at += 1
        return is_next

    def take_symbol(self, symbol: str) -> Token:
        if not self.next.is_symbol(symbol):
            self.unexpected()
        return self.take()

    def expect_word(self, word: str) -> None:
        if not self.skip_word(word):
            self.unexpected()

    def text_of(self, token: Token) -> str:
        return self._text[token.start : token.end][:60]

    def unexpected(self) -> NoReturn:
        unexpected(self._text, self.next)

    def column_name(self) -> str:
        token = self.next
        if self.after.is_symbol("("):
            if token.is_word("exists"):
                raise refused("EXISTS(...)", QUERY_FORM)
            if token.is_word("any", "all") or token.kind == "name" or token.value not in RESERVED:
                name = token.value if token.kind == "name" else self.text_of(token)
                raise refused(f"{name}(...)", "use neither functions nor type lengths")
        if token.is_word(*SESSION_VALUES):
            raise refused(
                f"{token.value}, a session value", f'for a column of that name, write "{token.value}" in double quotes'
            )
        name = self._name(token)
        if self.next.is_symbol("."):
            raise refused("a column qualified by a table", "write only the name of the column")
        return name

    def table_name(self) -> TableName:
        """``schema.table``, or only a table if a schema is given."""
        if self.next.kind not in ("word", "name"):
            raise refused("a subquery without a table", QUERY_FORM)
        name = self._name(self.next)
        if self.skip_symbol("."):
            return name, self._name(self.next)
        if self._schema is None:
            raise refused("a subquery of a table without its schema", "write it, as in FROM public.projects")
        return self._schema, name

    def begins_typed_literal(self) -> bool:
        """Whether ``type 'text'`` comes next."""
        words = self._type_words()
        if not words:
            words = 3 if self.after.is_symbol(".") else 1
        return self._ahead(words).kind == "string"

    def type_name(self) -> int | EnumName:
        """A built-in type's OID, or an enum; or an array of either in one dimension."""
        token = self.next
        found = self._scalar_type()
        name = self._text[token.start : self._tokens[self._at - 1].end].upper()
        if self.next.is_symbol("("):
            raise refused(f"{name.lower()}(...)", "use neither functions nor type lengths")
        if self.next.is_word("array"):
            raise refused("ARRAY without [...]", "write an array type as in ::int[]")
        if not (self.next.is_symbol("[") and self.after.is_symbol("]")):
            return found
        self._at += 2
        if self.next.is_symbol("[") and self.after.is_symbol("]"):
            raise refused(f"a cast to {name}[][]", "write the type of an array with one []")
        if self.next.kind == "string":
            raise refused("an array type before its literal", "write the type after the literal, as in '{1,2}'::int[]")
        if isinstance(found, EnumName):
            return replace(found, is_array=True)
        array = next((oid for oid, item in sql_values.ARRAYS.items() if item == found), None)
        if array is None:
            raise refused(f"a cast to {name}[]", "cast to an array of integers, of text, of uuid or of an enum")
        return array

    def _scalar_type(self) -> int | EnumName:
        token, words = self.next, self._type_words()
        if words:
            self._at += words
            return TYPES[self._joined(self._at - words, words)]
        if token.kind == "name" and token.value in CATALOG_TYPES and not self.after.is_symbol("."):
            self.take()
            return TYPES[token.value]
        if token.is_word(*NOT_TYPES) or token.is_word(*TYPES):
            raise refused(f"a cast to {token.value.upper()}", "cast to a plain type without a length")
        name = self._name(token)
        if not self.skip_symbol("."):
            return EnumName(None, name)
        found = EnumName(name, self._name(self.next))
        if self.next.is_symbol("."):
            place = self._tokens[self._at + 1]
            raise refused(f"a cast to {found}.{self.text_of(place)}", "write schema.type")
        return found

    def _type_words(self) -> int:
        """The number of words in the built-in type name that comes next; 0 if there is none."""
        for words in range(_LONGEST_TYPE, 0, -1):
            if self._joined(self._at, words) in TYPES and not self._ahead(words).is_symbol("."):
                return words
        return 0

    def _joined(self, at: int, count: int) -> str:
        tokens = self._tokens[at : at + count]
        return " ".join(token.value for token in tokens) if all(token.kind == "word" for token in tokens) else ""

    def _name(self, token: Token) -> str:
        if token.kind not in ("word", "name"):
            self.unexpected()
        if token.is_word(*RESERVED):
            self._refuse_reserved(token)
        self._at += 1
        return token.value

    def _refuse_reserved(self, token: Token) -> NoReturn:
        if token.value in ("and", "or", "not", "is", "like", "ilike", "between", "from", "where", "case", "select"):
            self.unexpected()
        word = self.text_of(token)
        raise malformed(
            self._text, token.start, f'{word} is a reserved word of SQL; as a name it needs quotes: "{token.value}"'
        )

    def _ahead(self, count: int) -> Token:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]
