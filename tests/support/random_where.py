"""Random rows and random conditions for comparing ``where`` with PostgreSQL: every type, operator and edge value.

Most conditions are valid SQL; some are refused by us, by the server or by both. Everything follows from the seed of the
``random.Random`` given, so a seed reproduces a failure.
"""

import re
from collections.abc import Callable
from random import Random

from flushtracker.shapes.where import sql_values as sql
from tests.support import where_values as own
from tests.support.where_values import DOMAINS, LABELS, VALUES, WORDS

_USER_TYPES: dict[int, str] = {
    own.MOOD: "mood", own.WEATHER: "weather", own.MOODS: "mood[]",
    own.TEXT_DOMAIN: "email", own.NUMBER_DOMAIN: "price", own.REAL_DOMAIN: "ratio", own.ARRAY_DOMAIN: "amounts",
}  # fmt: skip
SQL_TYPES: dict[int, str] = {
    **{oid: sql.TYPES[oid].name for oid in VALUES if oid in sql.TYPES},
    **_USER_TYPES,
    sql.BPCHAR: "character(8)",
}
COLUMNS: dict[str, int] = {
    f"{prefix}{number}": oid
    for number in (1, 2)
    for prefix, oid in (
        *(("i", sql.INT2), ("j", sql.INT4), ("k", sql.INT8), ("n", sql.NUMERIC), ("r", sql.FLOAT4), ("f", sql.FLOAT8)),
        *(("b", sql.BOOLEAN), ("t", sql.TEXT), ("v", sql.VARCHAR), ("c", sql.BPCHAR), ("u", sql.UUID), ("d", sql.DATE)),
        *(("ts", sql.TIMESTAMP), ("tz", sql.TIMESTAMPTZ), ("tm", sql.TIME), ("iv", sql.INTERVAL)),
        *(("ai", 1005), ("aj", 1007), ("ak", 1016), ("at", 1009), ("av", 1015), ("au", 2951)),
        *(("m", own.MOOD), ("w", own.WEATHER), ("am", own.MOODS), ("dt", own.TEXT_DOMAIN)),
        *(("dn", own.NUMBER_DOMAIN), ("dr", own.REAL_DOMAIN), ("da", own.ARRAY_DOMAIN)),
    )
}
_EXACT_TYPES = (sql.INT2, sql.INT4, sql.INT8, sql.NUMERIC, own.NUMBER_DOMAIN)
_NUMERIC_TYPES = (*_EXACT_TYPES, sql.FLOAT4, sql.FLOAT8, own.REAL_DOMAIN)
_TEXT_TYPES = (sql.TEXT, sql.VARCHAR, sql.BPCHAR, own.TEXT_DOMAIN)
COLLATED = frozenset(name for name, oid in COLUMNS.items() if oid in (*_TEXT_TYPES, 1009, 1015))
"""The columns that may have a collation of their own."""
_ARRAYS = {
    1005: sql.INT2, 1007: sql.INT4, 1016: sql.INT8, 1009: sql.TEXT, 1015: sql.VARCHAR, 2951: sql.UUID,
    own.MOODS: own.MOOD, own.ARRAY_DOMAIN: sql.INT4,
}  # fmt: skip
# Comparisons across types are the difficult ones, of numbers above all.
_FAMILIES = (
    *[_NUMERIC_TYPES] * 8,
    *[_TEXT_TYPES] * 2,
    *[(own.MOOD,)] * 4,
    (own.MOOD, own.WEATHER),
    (sql.DATE, sql.TIMESTAMP),
    *((oid,) for oid in VALUES),
)
# Items whose types, together, decide in which type a list is compared: few of them would be refused.
_ITEMS = ["1", "1.0", "0.5", "'0.1'", "'0.1'::real", "0.5::real", "'16777217'", "'1.5'", "'NaN'", "2", "'0.1'::float8"]
_NULL_CHANCE = 0.15


def create_types() -> list[str]:
    """Statements that create the types in the session's own schema; the labels get their order by and by."""
    first, *others = LABELS
    labels = zip(LABELS, others, strict=False)
    return [
        f"CREATE TYPE pg_temp.mood AS ENUM ({quoted(first)}, {quoted(LABELS[-1])})",
        *(
            f"ALTER TYPE mood ADD VALUE {quoted(label)} AFTER {quoted(before)}"
            for before, label in labels
            if label != LABELS[-1]
        ),
        f"CREATE TYPE pg_temp.weather AS ENUM ({', '.join(map(quoted, VALUES[own.WEATHER]))})",
        *(f"CREATE DOMAIN pg_temp.{SQL_TYPES[domain]} AS {SQL_TYPES[oid]}" for domain, oid in DOMAINS.items()),
    ]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def random_row(rng: Random) -> dict[str, str | None]:
    """A value for each column, as literals for an INSERT."""
    return {name: None if rng.random() < _NULL_CHANCE else _value(rng, oid) for name, oid in COLUMNS.items()}


def _value(rng: Random, oid: int) -> str:
    oid = DOMAINS.get(oid, oid)
    if oid == sql.NUMERIC and rng.random() < 0.3:
        whole, decimals = (rng.randrange(10 ** rng.randrange(1, digits)) for digits in (25, 9))
        return f"{rng.choice(['', '-'])}{whole}.{decimals}"
    if oid in _TEXT_TYPES and rng.random() < 0.3:
        return "".join(rng.choice("aAbBkKiIé%_\\! ") for _ in range(rng.randrange(1, 6)))
    return rng.choice(VALUES[oid])


class RandomWhere:
    """Generates conditions over :data:`COLUMNS`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def condition(self, depth: int = 2) -> str:
        roll = self._rng.random()
        if depth and roll < 0.2:
            connective = self._rng.choice(["AND", "OR"])
            return f"({self.condition(depth - 1)}) {connective} ({self.condition(depth - 1)})"
        if depth and roll < 0.3:
            wrap = self._rng.choice(["NOT ({})", "({}) IS TRUE", "({}) IS NOT FALSE", "({}) IS NULL", "({}) = b1"])
            return wrap.format(self.condition(depth - 1))
        kinds: list[Callable[[], str]] = [
            self._comparison, self._comparison, self._membership, self._membership, self._between, self._like,
            self._case, self._arithmetic, self._arithmetic, self._concatenation, self._array,
        ]  # fmt: skip
        return self._rng.choice(kinds)()

    def _family(self) -> tuple[int, ...]:
        return self._rng.choice(_FAMILIES)

    def _column(self, *oids: int) -> str:
        return self._rng.choice([name for name, oid in COLUMNS.items() if oid in oids])

    def _literal(self, *oids: int) -> str:
        oid = self._rng.choice(oids)
        text = _value(self._rng, oid)
        roll = self._rng.random()
        if roll < 0.05:
            return "NULL"
        if oid in _NUMERIC_TYPES and text[-1].isdigit() and roll < 0.55:
            return text
        if oid in (sql.DATE, sql.TIMESTAMP, sql.TIMESTAMPTZ) and roll < 0.2:
            # As JavaScript writes them; a type without a time zone ignores the offset.
            text = self._rng.choice(["2024-02-29T23:59:59.999Z", "2024-03-01T00:00:00.000Z"])
        if roll < 0.75 or oid == sql.BPCHAR:
            return quoted(text)
        return f"{quoted(text)}::{SQL_TYPES[DOMAINS.get(oid, oid)]}"

    def _operand(self, oids: tuple[int, ...]) -> str:
        roll = self._rng.random()
        if roll < 0.1 and oids[0] in _EXACT_TYPES:
            return f"({self._calculation()})"
        if roll < 0.15 and oids[0] in _NUMERIC_TYPES:
            return f"(- {self._column(*oids)})"
        return self._column(*oids) if roll < 0.75 else self._literal(*oids)

    def _comparison(self) -> str:
        oids = self._family()
        symbols = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "=", "<>"]
        return f"{self._operand(oids)} {self._rng.choice(symbols)} {self._operand(oids)}"

    def _membership(self) -> str:
        oids = self._family()
        count = self._rng.randrange(1, 5)
        items = ", ".join(
            self._rng.choice(_ITEMS) if oids is _NUMERIC_TYPES else self._literal(*oids) for _ in range(count)
        )
        return f"{self._operand(oids)} {self._rng.choice(['IN', 'IN', 'NOT IN'])} ({items})"

    def _between(self) -> str:
        oids = self._family()
        operator = self._rng.choice(["BETWEEN", "NOT BETWEEN"])
        return f"{self._operand(oids)} {operator} {self._operand(oids)} AND {self._operand(oids)}"

    def _pattern(self, letters: str) -> str:
        return "".join(self._rng.choice(letters) for _ in range(self._rng.randrange(5)))

    def _like(self) -> str:
        escape = self._rng.choice(
            ["", "", "", " ESCAPE '!'", " ESCAPE ''", " ESCAPE '\\'", " ESCAPE '%'", " ESCAPE 'a'"]
        )
        operator = self._rng.choice(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
        operand = self._rng.choice([self._text(), self._column(*_TEXT_TYPES)])
        return f"{operand} {operator} {quoted(self._pattern('aAbkKiI%%__!é日' + chr(92)))}{escape}"

    def _text(self) -> str:
        if self._rng.random() < 0.15:
            return f"{self._column(own.MOOD, *_TEXT_TYPES)}::{self._rng.choice(['text', 'varchar'])}"
        return f"({self._concatenated()})" if self._rng.random() < 0.3 else self._operand(_TEXT_TYPES)

    def _case(self) -> str:
        mapped = f"{self._rng.choice(['lower', 'upper'])}({self._text()})"
        word = quoted(self._rng.choice([*WORDS, "kab", "KAB", "abk", self._pattern("akiAKI ")]))
        match self._rng.randrange(5):
            case 0:
                return f"{mapped} IN ({word}, {self._literal(sql.TEXT)})"
            case 1:
                return f"{mapped} {self._rng.choice(['LIKE', 'NOT LIKE', 'ILIKE'])} {quoted(self._pattern('akiAKI%_'))}"
            case 2:
                return f"{mapped} {self._rng.choice(['<>', 'IS DISTINCT FROM'])} {word}"
            case 3:
                return f"{mapped} IS NULL"
        return f"{mapped} = {self._rng.choice([word, word, f'lower({word})'])}"

    def _concatenated(self) -> str:
        return " || ".join(self._operand(_TEXT_TYPES) for _ in range(self._rng.randrange(2, 4)))

    def _concatenation(self) -> str:
        return f"{self._concatenated()} {self._rng.choice(['=', '<>'])} {self._text()}"

    def _calculation(self) -> str:
        number = self._rng.choice([_EXACT_TYPES, (sql.NUMERIC,), (sql.INT4,)])
        left, right = (self._column(*number) if self._rng.random() < 0.6 else self._literal(*number) for _ in range(2))
        symbol = self._rng.choice(["+", "-", "*", "/", "/", "%", "%"])
        if self._rng.random() < 0.3:
            return f"({left} {symbol} {right}) {self._rng.choice('+-*/%')} {self._literal(*number)}"
        return f"{left} {symbol} {right}"

    def _arithmetic(self) -> str:
        symbol = self._rng.choice(["=", "<>", "<", ">=", "<", ">="])
        if self._rng.random() < 0.2:
            # Whether this is exact depends on the last digit of the quotient.
            dividend, divisor = (self._column(*_EXACT_TYPES) for _ in range(2))
            return f"{dividend} / {divisor} * {divisor} {symbol} {dividend}"
        right = self._calculation() if self._rng.random() < 0.4 else self._operand(_EXACT_TYPES)
        return f"{self._calculation()} {symbol} {right}"

    def _array(self) -> str:
        if self._rng.random() < 0.4:
            return self._any_of_literal()
        oid = self._rng.choice(list(_ARRAYS))
        column, other = self._column(oid), self._rng.choice([self._column(oid), self._literal(oid)])
        if self._rng.random() < 0.3:
            other = self._constructor(oid)
        if self._rng.random() < 0.4:
            return f"{self._operand((_ARRAYS[oid],))} = ANY({column})"
        return f"{column} {self._rng.choice(['@>', '<@', '&&', '=', '<>', 'IS DISTINCT FROM'])} {other}"

    def _any_of_literal(self) -> str:
        oid = self._rng.choice([oid for oid in VALUES if oid not in _ARRAYS])
        arrays = [array for array, item in _ARRAYS.items() if item == oid]
        items = [_value(self._rng, oid) for _ in range(self._rng.randrange(4))]
        texts = [
            "NULL" if self._rng.random() < _NULL_CHANCE else '"' + re.sub(r'(["\\])', r"\\\1", item) + '"'
            for item in items
        ]
        literal = quoted("{" + ",".join(texts) + "}")
        if arrays and self._rng.random() < 0.6:
            literal = self._rng.choice(
                [self._constructor(arrays[0]), f"{literal}::{SQL_TYPES[DOMAINS.get(arrays[0], arrays[0])]}"]
            )
        return f"{self._operand((oid,))} {self._rng.choice(['= ANY', '= ANY', '<> ALL'])} ({literal})"

    def _constructor(self, oid: int) -> str:
        oid = DOMAINS.get(oid, oid)
        items = [
            self._rng.choice([quoted(_value(self._rng, _ARRAYS[oid])), "NULL"]) for _ in range(self._rng.randrange(4))
        ]
        if _ARRAYS[oid] in _EXACT_TYPES:
            items = [self._rng.choice([*VALUES[_ARRAYS[oid]], "NULL"]) for _ in items]
        return f"ARRAY[{', '.join(items)}]" + (f"::{SQL_TYPES[oid]}" if self._rng.random() < 0.7 else "")
