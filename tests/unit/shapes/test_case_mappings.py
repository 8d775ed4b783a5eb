"""Where a condition depends on how a collation maps the case of letters, and which collations map them as here."""

from collections.abc import Callable

import pytest

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import parts_of
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding, case_reason
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.case_probes import is_expected, probes
from flushtracker.shapes.where.letter_case import LetterCase, has_other_letters
from tests.support.key_bindings import ID_KEY

_TURKISH = ("lower('I') is 'ı'", "upper('i') is 'İ'")
_GREEK = ("upper('Ή') is 'Ή'",)


def _mapper(case: LetterCase) -> Callable[[str], str]:
    return str.lower if case == "lower" else str.upper


def _in_ascii(text: str, case: LetterCase) -> str:
    return "".join(_mapper(case)(each) if each.isascii() else each for each in text)


def _one_to_one(text: str, case: LetterCase) -> str:
    return "".join(mapped if len(mapped := _mapper(case)(each)) == 1 else each for each in text)


def _by_unicode(text: str, case: LetterCase) -> str:
    return "".join(map(_mapper(case), text))


def _in_turkish(text: str, case: LetterCase) -> str:
    return _by_unicode(text.replace(*("Iı" if case == "lower" else "iİ")), case)


def _in_greek(text: str, case: LetterCase) -> str:
    return _by_unicode(text.replace("\u03b1\u0301", "\u03b1"), case)


def _with_a_new_letter(text: str, case: LetterCase) -> str:
    """As a server with a later version of Unicode, in which a letter without a pair has one."""
    return _one_to_one(text, case).replace(*("\u0378\u0379" if case == "upper" else "\u0379\u0378"))


def _with_a_digit(text: str, case: LetterCase) -> str:
    return _one_to_one(text, case).replace("\u0661", "1")


@pytest.mark.parametrize("case", ["lower", "upper"])
@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        *((_in_ascii, True), (_one_to_one, True), (_by_unicode, True), (_with_a_new_letter, True)),
        *((_in_turkish, False), (_in_greek, False), (_with_a_digit, False)),
    ],
)
def test_a_collation_is_told_by_how_it_maps_the_probes(
    mapped: Callable[[str, LetterCase], str], case: LetterCase, *, expected: bool
) -> None:
    assert all(is_expected(probe, mapped(probe, case), case) for probe in probes()) == expected


def test_a_literal_may_have_no_letter_that_a_later_unicode_may_map() -> None:
    """Letters with one case, and code points without a character: the server may know more of them."""
    assert all(map(has_other_letters, ["é", "ĸ", "\u0378", "ß"]))
    assert not any(map(has_other_letters, ["abc", "日本", "§ 1", "\U0001f600"]))


def test_functions_of_columns_and_of_literals_are_found() -> None:
    where = parse_where("lower(a || b) = 'x' OR c ILIKE '%' AND d IN (upper('e')::text, 'f') AND g = 'h'")
    assert where.case_mappings == {("lower", frozenset("ab")), ("lower", frozenset("c")), ("upper", frozenset())}
    assert parse_where("a = 'x' AND b = 1").case_mappings == frozenset()
    assert parse_where("a = ANY(ARRAY[lower('X'), 'y'])").case_mappings == {("lower", frozenset())}


def test_those_of_a_part_are_those_of_the_whole_condition() -> None:
    """Also where the part lets all rows through."""
    where = "upper(a) = 'X' OR id IN (SELECT b FROM public.u WHERE lower(c) = 'x')"
    own, inner = parts_of(ShapeDefinition("s", ("public", "t"), where=where))
    assert own.where is None
    assert Shape(own).filter.mapped == {("upper", frozenset("a"))}
    assert Shape(inner).filter.mapped == {("lower", frozenset("c"))}


def table(own: tuple[str, ...] | None, default: tuple[str, ...]) -> TableBinding:
    columns = (ColumnBinding(1, "id", 23, -1, 7), ColumnBinding(2, "v", 25, -1, 7, case_differences=own))
    return TableBinding(7, ("public", "t"), ID_KEY, columns, case_differences=default)


@pytest.mark.parametrize(
    ("where", "own", "default", "reason"),
    [
        ("lower(v) = 'x'", None, (), None),
        ("lower(v) = 'x'", (), _TURKISH, None),
        ("upper(v) = 'X'", _GREEK, (), "uses upper of column v of table public.t, and in its collation upper('Ή')"),
        ("lower(v) = 'x'", _GREEK, _TURKISH, None),
        (
            "v ILIKE 'x'",
            None,
            _TURKISH,
            "or ILIKE of column v of table public.t, and in the database's collation",
        ),
        ("v = lower('X')", (), _TURKISH, "uses lower or ILIKE of a literal, and in the database's collation"),
        ("v = 'x' AND v LIKE 'i%'", _TURKISH, _TURKISH, None),
    ],
)
def test_the_collation_of_a_column_counts_or_else_that_of_the_database(
    where: str, own: tuple[str, ...] | None, default: tuple[str, ...], reason: str | None
) -> None:
    found = case_reason(parse_where(where).case_mappings, table(own, default))
    assert found is None if reason is None else reason in str(found)
