"""``where`` in databases of other encodings than UTF-8: it means what it means on the server, or is refused."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from random import Random
from typing import Final

import pytest

from flushtracker.errors import PostgresError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.where import Where, parse_where
from flushtracker.shapes.where.server_encoding import AMBIGUOUS, SQL_ASCII
from flushtracker.wal.changes import Column, Relation, Row
from tests.support.new_server import running_server
from tests.support.random_where import quoted
from tests.support.seeds import first_seed
from tests.support.where_comparison import outcome_of

# Codes of characters: two of one character, one of two characters and those themselves, letters, and others.
_CODES: Final[Mapping[str, tuple[str, ...]]] = {
    SQL_ASCII: ("c3a9", "c389", "e282ac", "e697a5"),
    "EUC_JP": ("a2c0", "adfc", "a4a2", "a3c1", "a3e1"),
    "EUC_TW": ("a1a2", "8ea1a1a2", "a4c1", "c4e3"),
    "EUC_JIS_2004": ("a4ab", "a4f7", "abe5", "abe6", "abe0", "abe4"),
    "EUC_KR": ("b0a1", "a3c1", "a3e1"),
    "EUC_CN": ("b0a1", "a3c1", "a3e1"),
    "LATIN1": ("e9", "c9", "df"),
    "WIN1252": ("80", "e9", "8a", "9a"),
    "KOI8R": ("c1", "e1", "a3"),
}
_TABLE: Final = "CREATE TABLE t (id serial PRIMARY KEY, v text, w varchar NOT NULL UNIQUE, n int)"
_RELATION: Final = Relation(1, "public", "t", "full", (Column("v", 25), Column("w", 1043), Column("n", 23)))
_ASCII: Final = ("61", "41", "62", "20")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    with running_server() as server:
        for encoding in _CODES:
            server.execute(
                f"CREATE DATABASE {encoding} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            )
        yield server


class Texts:
    """Random texts of one encoding: as expressions for the server, and as it sends them."""

    def __init__(self, rng: Random, encoding: str) -> None:
        self._rng, self._encoding = rng, encoding

    def value(self) -> str:
        """An expression for a short text, of which some are equal in UTF-8 and not in the database."""
        codes = "".join(
            self._rng.choice([*_ASCII, *_CODES[self._encoding] * 2]) for _ in range(self._rng.randint(1, 3))
        )
        return f"convert_from('\\x{codes}', '{self._encoding}')"

    def literals(self, connection: Connection) -> list[str]:
        ((texts,),) = rows(connection, f"SELECT ARRAY[{', '.join(self.value() for _ in range(40))}]")
        return [*texts, "a", "A", "ab", ""]


def condition(rng: Random, literals: list[str]) -> str:
    first, second = (quoted(rng.choice(literals)) for _ in range(2))
    column, other = rng.choice(["v", "w"]), rng.choice(["v", "w"])
    pattern = quoted("".join(rng.choice([*"%%__a", *rng.choice(literals)]) for _ in range(rng.randint(1, 4))))
    kinds = [
        *(f"{column} = {first}", f"{column} <> {first}", f"{column} IN ({first}, {second})", f"{column} = {other}"),
        *(f"{column} LIKE {pattern}", f"{column} NOT LIKE {pattern}", f"{column} ILIKE {pattern}"),
        *(f"lower({column}) = {first}", f"upper({column}) LIKE {pattern}", f"{column} || {first} = {other}"),
        *(f"{column} = ANY(ARRAY[{first}, {second}])", f"{column} IS NULL", f"n = 1 OR {column} = 'a'"),
    ]
    return rng.choice(kinds)


def on_server(connection: Connection, where: str) -> str | None:
    """A letter for each row; ``None`` for a literal that the encoding lacks, with which no snapshot can be taken."""
    text = f"SELECT string_agg(coalesce(left(({where})::text, 1), 'u'), '' ORDER BY id) FROM t"  # noqa: S608  our own
    try:
        return str(rows(connection, text)[0][0])
    except PostgresError as error:
        if "has no equivalent in encoding" not in str(error):
            raise
        return None


def found_here(where: Where, values: Sequence[Row], expected: str) -> str:
    """Likewise; a row that ends the shape, because its letters' case depends on the collation, is as expected."""
    matches = where.bind(_RELATION)
    letters = [outcome_of(matches, row) for row in values]
    return "".join(theirs if ours == "c" else ours for ours, theirs in zip(letters, expected, strict=True))


@pytest.mark.parametrize("encoding", _CODES)
def test_a_condition_means_what_it_means_in_the_encoding_or_is_refused(server: LocalPostgres, encoding: str) -> None:
    """And what is refused would differ for some rows; where each character is one of UTF-8's, nothing is refused."""
    seed = first_seed()
    rng, done = Random(seed), Counter[str]()  # noqa: S311  reproducible
    texts = Texts(rng, encoding)
    with closing(server.connect(dbname=encoding.lower())) as connection:
        rows(connection, _TABLE)
        for number in range(120):
            value = texts.value() if rng.random() < 0.9 else "NULL"
            given = f"{value}, {texts.value()}, {number % 3}"
            rows(connection, f"INSERT INTO t (v, w, n) VALUES ({given}) ON CONFLICT DO NOTHING")  # noqa: S608  our own
        values = [{"v": v, "w": w, "n": n} for v, w, n in rows(connection, "SELECT v, w, n::text FROM t ORDER BY id")]
        literals = texts.literals(connection)
        for _ in range(300):
            text = condition(rng, literals)
            try:
                where = parse_where(text)
                where.bind(_RELATION)
            except ShapeError:
                continue
            if (expected := on_server(connection, text)) is None:
                continue
            is_equal = found_here(where, values, expected) == expected
            is_refused = bool(where.encoding_reasons(_RELATION, encoding))
            assert is_equal or is_refused, f"seed {seed}, {encoding}: {text}"
            done[f"{'refused' if is_refused else 'taken'}, {'same' if is_equal else 'differs'}"] += 1
    assert done["taken, same"] > 50
    is_other = encoding in {SQL_ASCII, *AMBIGUOUS}
    assert (done["refused, differs"] > 0, done.total() > done["taken, same"]) == (is_other, is_other), seed


def _shape(where: str | None = None, *key: str) -> ShapeDefinition:
    return ShapeDefinition("b", ("public", "t"), where=where, primary_key=key or None)


@pytest.mark.parametrize(
    ("encoding", "shape", "reason"),
    [
        (SQL_ASCII, _shape("v LIKE 'a_'"), "where uses _ in LIKE, of which SQL_ASCII counts other characters than"),
        (SQL_ASCII, _shape("v ILIKE 'a'"), "where ignores or maps case, which SQL_ASCII does byte by byte"),
        (SQL_ASCII, _shape(r"v LIKE 'é\_%'", "w"), None),
        ("EUC_JIS_2004", _shape("v LIKE 'a_'"), "where uses _ in LIKE, of which EUC_JIS_2004 counts other"),
        ("EUC_JP", _shape("v LIKE 'a_' AND n = 1 AND w IN ('b', 'c') AND v IS NOT NULL"), None),
        ("EUC_JP", _shape("v = '∪'"), "where compares column v, of which different texts of EUC_JP may be one in"),
        ("EUC_JP", _shape("v = w"), "where compares column v, w, of which different texts"),
        ("EUC_TW", _shape(None, "w"), "the key has column w, of which different texts of EUC_TW may be one in"),
        ("LATIN1", _shape("v LIKE 'é_' AND lower(w) = 'a'", "w"), None),
    ],
)
def test_a_definition_that_depends_on_the_encoding_is_refused(
    server: LocalPostgres, encoding: str, shape: ShapeDefinition, reason: str | None
) -> None:
    """With what to do, whatever other shape of its form was accepted before."""
    with closing(server.connect(dbname=encoding.lower())) as connection:
        rows(connection, "DROP TABLE IF EXISTS t")
        rows(connection, _TABLE)
        rows(connection, "ALTER TABLE t REPLICA IDENTITY FULL")
        shapes = [ShapeDefinition("a", ("public", "t"), where="v = 'a'"), shape]
        if reason is None:
            assert len(resolve_shapes(connection, None, shapes)) == 2
        else:
            with pytest.raises(ShapeError, match=f"shape 'b'.*{reason}.* convert the database to UTF8"):
                resolve_shapes(connection, None, shapes)
