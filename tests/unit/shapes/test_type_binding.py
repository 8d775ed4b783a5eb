"""Types that are not built in: which changes to them a shape survives."""

from dataclasses import replace

import pytest

from flushtracker.shapes.table_binding import ColumnBinding, TableBinding, reason_to_end
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding, made_of, user_types
from tests.support.key_bindings import ID_KEY

SAD, OK, HAPPY = EnumLabel(1, "sad", 700), EnumLabel(2, "ok", 705), EnumLabel(3, "happy", 700)
MOOD = TypeBinding(16_400, "public", "mood", "enum", labels=(SAD, HAPPY))
MOODS = TypeBinding(16_401, "public", "_mood", "array", parts=(16_400,))
BEST = TypeBinding(16_402, "public", "best", "domain", parts=(16_401,))
PAIR = TypeBinding(16_403, "public", "pair", "composite", parts=(23, 16_400), attributes=2)
SPAN = TypeBinding(16_404, "public", "span", "range", parts=(16_400,))
EMAIL = TypeBinding(16_405, "public", "email", "domain", parts=(25,))
ALL = {each.oid: each for each in (MOOD, MOODS, BEST, PAIR, SPAN, EMAIL)}


def table(type_oid: int, *types: TypeBinding) -> TableBinding:
    """A table with a column ``m`` of that type, as the catalog has it; ``types`` replace those of ``ALL``."""
    known = ALL | {each.oid: each for each in types}
    columns = (ColumnBinding(1, "id", 23, -1, 9), ColumnBinding(2, "m", type_oid, -1, 9))
    binding = TableBinding(7, ("public", "t"), ID_KEY, columns, published_by=("all tables",))
    return replace(binding, types=made_of([type_oid], known))


def test_types_are_recorded_with_what_they_are_made_of() -> None:
    """Other types are not."""
    assert [each.name for each in table(BEST.oid).types] == ["mood", "_mood", "best"]
    assert [each.name for each in table(PAIR.oid).types] == ["mood", "pair"]
    assert table(23).types == ()


@pytest.mark.parametrize("column", [MOOD, MOODS, BEST, PAIR, SPAN], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ((replace(SAD, text="blue", version=800), HAPPY), "label 'sad' of type public.mood was renamed to 'blue'"),
        ((HAPPY,), "label 'sad' of type public.mood was removed"),
        ((replace(SAD, version=800), HAPPY), "label 'sad' of type public.mood was altered, and may have had"),
    ],
    ids=["renamed", "removed", "renamed and renamed back"],
)
def test_an_altered_label_ends_a_shape(column: TypeBinding, labels: tuple[EnumLabel, ...], reason: str) -> None:
    """However deep it is in the type of a column that the shape has."""
    bound, now = table(column.oid), table(column.oid, replace(MOOD, labels=labels))
    found = reason_to_end(None, bound, now)
    assert found is not None
    assert found.startswith(reason)
    assert found.endswith("(column m of table public.t)")
    assert reason_to_end({"id"}, bound, now) is None


@pytest.mark.parametrize(
    ("column", "survives"),
    [(MOOD, True), (MOODS, True), (BEST, True), (PAIR, False), (SPAN, False)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_an_added_label_ends_a_shape_only_if_its_values_are_not_checked(
    column: TypeBinding,
    survives: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    """A label that was added and then renamed shows in a value that is no longer a label."""
    now = table(column.oid, replace(MOOD, labels=(SAD, OK, HAPPY)))
    assert (reason_to_end(None, table(column.oid), now) is None) == survives


@pytest.mark.parametrize("now", [replace(PAIR, parts=(23, 16_400, 23), attributes=3), replace(PAIR, attributes=3)])
def test_an_altered_composite_type_ends_a_shape(now: TypeBinding) -> None:
    """Also if an attribute was added and dropped again, as rows were written with it."""
    assert "type public.pair was altered" in str(reason_to_end(None, table(PAIR.oid), table(PAIR.oid, now)))


def test_a_renamed_type_ends_no_shape() -> None:
    """Its values are the same."""
    now = table(MOODS.oid, replace(MOOD, name="feeling", schema="elsewhere"))
    assert reason_to_end(None, table(MOODS.oid), now) is None


def test_types_are_described_for_conditions() -> None:
    """Labels in their order, and through a domain what it is over."""
    types = user_types(ALL.values())
    assert types[MOOD.oid].labels == ("sad", "happy")
    assert types[BEST.oid].enum == types[MOODS.oid].enum == types[MOOD.oid]
    assert types[EMAIL.oid].unrestricted == 25
    assert types[PAIR.oid].enum is None
