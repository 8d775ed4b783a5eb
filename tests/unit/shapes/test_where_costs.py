"""What a condition may cost: no operator, literal or text takes more than a fraction of a second, or much memory."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Final

import pytest

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import chains, parse_where
from flushtracker.shapes.where.number_values import exact_arithmetic, parse_numeric
from flushtracker.wal.changes import Column
from tests.support.where_table import relation

_LONGEST: Final = {
    "whole": "7" * 131_072,
    "half": "3" * 65_000,
    "decimals": "0." + "7" * 16_383,
    "both": "7" * 131_072 + "." + "3" * 16_383,
    "short": "7.3",
    "largest": "1e131071",
    "smallest": "1e-16383",
}
_TEXT: Final = 8_000
"""Characters of the longest condition that a client of the HTTP server may send."""


def _is_cheap(run: Callable[[], object], limit_s: float) -> bool:
    """Whether this thread needs less CPU time for it, in the best of three runs."""
    for _ in range(3):
        began = time.thread_time()
        run()
        if time.thread_time() - began < limit_s:
            return True
    return False


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%"])
def test_no_operator_takes_long_for_the_longest_numbers(operator: str) -> None:
    """Not even for the most digits that a numeric can have: a row with such numbers must not stop all others."""
    calculate = exact_arithmetic(operator, whole=False)
    numbers = [parse_numeric(text) for text in _LONGEST.values()]

    def run(left: object, right: object) -> None:
        with suppress(OverflowError):
            calculate(left, right)

    for left in numbers:
        for right in numbers:
            assert _is_cheap(partial(run, left, right), 0.3)


def test_no_calculation_makes_a_number_that_a_server_has_not() -> None:
    """Else a condition that squares again and again would make one of any length, of a single digit in a row."""
    table = relation()
    square = "n"
    for _ in range(10):
        square = f"({square} * {square})"
    matches = parse_where(f"{square} = 0").bind(table)
    row = dict.fromkeys((column.name for column in table.columns), None) | {"n": "1e131071"}
    with pytest.raises(Exception, match="out of the range of numeric"):
        matches(row)
    assert matches(row | {"n": "0"})
    product = exact_arithmetic("*", whole=False)(Decimal("0." + "5" * 16_383), Decimal("0.5"))
    assert len(str(product)) == 16_385
    assert str(product).endswith("778")


def _filled(head: str, piece: str, tail: str = "") -> str:
    return head + piece * ((_TEXT - len(head) - len(tail)) // len(piece)) + tail


def _hostile() -> Iterable[str]:
    for literal in ("1e131071", "-1e131071", "'1e131071'", "1e131071::numeric", "'1e131071'::numeric", "1e-16383"):
        for column in ("n", "i8", "f8"):
            yield _filled(f"{column} IN (", f"{literal}, ", f"{literal})")
            yield _filled(f"{column} = {literal}", f" OR {column} = {literal}")
        yield _filled(f"n BETWEEN {literal} AND {literal}", f" AND n BETWEEN {literal} AND {literal}")
    yield from (f"i4 {test} ({', '.join(map(str, range(1_300)))})" for test in ("IN", "NOT IN"))
    yield f"last IN ({', '.join(map(str, range(1_300)))})"
    yield _filled("t LIKE '", "%a", "'")
    yield _filled("t = '", "''", "")
    yield _filled("", "'")
    yield _filled("", '"')
    yield _filled("", "/*")
    yield _filled("i4 = 1", "--\n")
    yield "(" * 20 + _filled("n = 1", " OR n = 1")[:7_950] + ")" * 20
    yield _filled("t = lower('é", "Z", "')")
    yield _filled("lower(t) = 'a'", " OR lower(t) = 'a'")
    yield f"i4s @> '{{{','.join('1' * 3_900)}}}'"
    yield f"i4s @> ARRAY[{','.join('1' * 3_900)}]"
    yield _filled("n IN (SELECT id FROM public.t)", " AND n IN (SELECT id FROM public.t)")
    yield f"n = 0.{'9' * 7_900}"
    yield f"n = 1 AND n = {'9' * 7_900}"


@pytest.mark.parametrize("where", [pytest.param(text, id=str(n)) for n, text in enumerate(_hostile())])
def test_a_definition_of_a_client_is_read_in_a_fraction_of_a_second(where: str) -> None:
    """Also on a table of 1,600 columns: one thread reads all definitions, and those of others wait."""
    table = relation()
    columns = (*(Column(f"c{n}", 1700) for n in range(1_500)), *table.columns, Column("last", 1700))
    wide = replace(table, columns=columns)
    assert len(where) <= _TEXT

    def read() -> None:
        with suppress(ShapeError):
            parse_where(where).canonical(wide)

    assert _is_cheap(read, 0.5)


def test_forms_that_are_remembered_are_short() -> None:
    """Clients send any conditions, and a thousand forms of them are kept."""
    chains._read_form.cache_clear()
    for n in range(5):
        text = _filled("n = 1", f" AND column_{n} = 1")
        assert parse_where(text).form is None
    assert chains._read_form.cache_info().currsize == 0
    assert parse_where("n = 1 AND i4 = 2").form == "n = 0 AND i4 = 0"
