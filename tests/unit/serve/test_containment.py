"""Which shape contains a definition on demand, and the configuration of the tables."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.config.serve_config import load_serve_config
from flushtracker.errors import ConfigError, DecodeError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry, TableEntry
from flushtracker.serve.definitions import Definitions, Target
from flushtracker.serve.refusals import BadRequestError, RefusalError
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.where import Where, parse_where
from flushtracker.shapes.where.canonical import Form
from flushtracker.wal.changes import Relation
from flushtracker.wal.log_offset import LogOffset
from tests.support.on_demand_log import BINDING, ORDERS, READ, WHOLE, order_entries, order_entry
from tests.support.random_ranges import random_condition, random_row
from tests.support.shape_log_rows import SOURCE

_ENDED: Final = LogOffset(24, 0)
_TABLE: Final = TableEntry(SOURCE, BINDING)


def target(entries: Iterable[ShapeEntry | TableEntry], where: str | None = None, columns: str | None = None) -> Target:
    found = Definitions(Registry.of(entries), None).target(
        RequestedDefinition("orders", where, columns, "default"), {ORDERS}
    )
    assert found is not None
    return found


def parent_of(where: str | None, *shapes: ShapeDefinition, columns: str | None = "t") -> str | None:
    """The parent's id; ``None`` without one."""
    try:
        return target(order_entries(*shapes), where, columns).shape_id
    except BadRequestError:
        raise
    except RefusalError:
        return None


def shape(shape_id: str, where: str | None, *columns: str) -> ShapeDefinition:
    return replace(WHOLE, id=shape_id, where=where, columns=columns or None)


@pytest.mark.parametrize(
    ("where", "columns", "expected"),
    [
        ("i4 = 1 AND b AND id > 5", "t", "both"),
        ("id > 5 AND 1 = i4", "t", "one"),
        ("b AND i4 IN (1)", "v", "both"),
        ("b OR i4 = 1", "t", "whole"),
        ("i4 = 2", None, "whole"),
        (None, "t,id", "whole"),
    ],
)
def test_the_parent_has_the_most_parts_of_the_condition(where: str | None, columns: str | None, expected: str) -> None:
    """Parts are compared by what they mean, in whatever order; all servers take the same parent."""
    shapes = [shape("one", "i4 = 1"), shape("whole", None), shape("both", "b AND i4 = 1"), shape("zwei", "i4 = 1")]
    for _ in range(2):
        assert parent_of(where, *shapes, columns=columns) == expected
        shapes.reverse()


def test_a_shape_without_a_column_that_is_read_or_shown_contains_nothing_of_it() -> None:
    """The key is always there; without ``columns``, all are shown, also those that are added later."""
    some = shape("some", None, "t", "b")
    assert parent_of("b", some, columns="t") == "some"
    assert parent_of("b AND id = 1", some, columns="id") == "some"
    assert parent_of("b AND n = 1", some, columns="t") is None
    assert parent_of("b", some, columns="t,n") is None
    assert parent_of("b", some, columns=None) is None
    every = shape("every", None, *(column.name for column in BINDING.columns))
    assert parent_of("b", every, columns=None) is None


def test_a_shape_that_may_lack_rows_is_no_parent() -> None:
    """One that has ended, began without the rows, is another program's, or has subqueries; but one begins again."""
    inner = InnerTable(ORDERS, 7, ("id",))
    for changed in (
        {"snapshot": False},
        {"writer": "others"},
        {"where": "id IN (SELECT id FROM public.orders)", "inner_tables": (inner,)},
        {"table": ("public", "others")},
    ):
        assert parent_of("b", replace(WHOLE, **changed)) is None
    ended = replace(order_entry(), removed_at=_ENDED, ended_because="its table was dropped")
    with pytest.raises(RefusalError, match=r"no live shape of public\.orders"):
        target([ended, _TABLE], "b")
    again = replace(ended, ended_because=BEGUN_AGAIN)
    assert target([again, _TABLE], "b").shape_id == "orders"


def test_a_shape_that_has_ended_is_still_that_of_its_definition() -> None:
    """So clients are told that it has ended, unless another shape contains the definition."""
    ended = replace(order_entry(shape("paid", "b")), removed_at=_ENDED)
    assert target([ended, _TABLE], "b") == Target("paid", entry=ended)
    assert target([ended, order_entry(), _TABLE], "b").shape_id == "orders"


def test_a_definition_is_read_as_often_however_many_shapes_its_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client sends may be long, and one thread reads the definitions of all clients."""
    read, canonical = list[str](), Where.canonical

    def counting(self: Where, relation: Relation | None = None) -> Form:
        read.append(self.text)
        return canonical(self, relation)

    monkeypatch.setattr(Where, "canonical", counting)
    counts = list[int]()
    for others in (1, 200):
        shapes = [shape(f"s{number}", f"i4 = {number}", "t") for number in range(others)]
        found = Definitions(Registry.of(order_entries(WHOLE, *shapes)), None)
        for where in ("id = 1", "id = 2"):
            read.clear()
            assert found.target(RequestedDefinition("orders", where, "t", "default"), {ORDERS}) is not None
        counts.append(len(read))
    assert counts[0] == counts[1] < 5


def test_parents_of_several_sources_are_ambiguous() -> None:
    other = replace(order_entry(), source="8/1/s")
    entries: list[ShapeEntry | TableEntry] = [order_entry(), other, _TABLE, replace(_TABLE, source="8/1/s")]
    with pytest.raises(BadRequestError, match="several sources contain it"):
        target(entries, "b")


def test_a_condition_that_a_collation_decides_is_refused() -> None:
    columns = tuple(replace(each, is_deterministic=each.name != "t") for each in BINDING.columns)
    entries: list[ShapeEntry | TableEntry] = [order_entry(), replace(_TABLE, binding=replace(BINDING, columns=columns))]
    with pytest.raises(BadRequestError, match="nondeterministic collation"):
        target(entries, "t = 'a'")


def test_spellings_of_one_definition_share_a_digest() -> None:
    """Others have another: of the condition, the columns, or what updates have."""
    entries = order_entries(WHOLE)

    def digest(where: str | None, columns: str | None = None) -> str:
        found = target(entries, where, columns).selection
        assert found is not None
        return found.digest

    assert digest("i4 = 1 AND b", "t,v") == digest("b AND '1' = i4", "id, v,t")
    assert len({digest("b"), digest("NOT b"), digest("b", "t"), digest("b", "t,v"), digest(None, "t")}) == 5


def test_each_row_of_a_definition_is_one_of_its_parent() -> None:
    """Random conditions of two: what is taken for contained is so for every row that has an outcome."""
    rng, contained = Random(50), 0  # noqa: S311  reproducible
    relation = relation_of(BINDING)
    while contained < 60:
        parts = [random_condition(rng, READ) for _ in range(3)]
        outer = " AND ".join(f"({each})" for each in rng.sample(parts, 2))
        form = rng.choice(["({}) AND ({}) AND ({})", "({}) AND (({}) OR ({}))", "({}) OR ({}) AND ({})"])
        inner = form.format(*parts)
        try:
            if parent_of(inner, shape("outer", outer)) is None:
                continue
            narrow, wide = (parse_where(each).bind(relation) for each in (inner, outer))
        except BadRequestError:
            continue
        contained += 1
        for _ in range(50):
            row = random_row(rng)
            try:
                assert wide(row) is True or narrow(row) is not True, (inner, outer, row)
            except DecodeError:
                continue


def test_tables_on_demand_are_named_as_in_sql(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    text = "storage: a\nserve:\n  reads: 2\n"
    path.write_text(text)
    assert load_serve_config(path).on_demand == frozenset()
    path.write_text(text + "  on_demand: [Public.orders, 'public.\"Line/No\"']\n  on_demand_definitions: 5\n")
    found = load_serve_config(path)
    assert (found.on_demand, found.on_demand_definitions) == (
        frozenset([("public", "orders"), ("public", "Line/No")]),
        5,
    )
    path.write_text(text + "  on_demand: [orders]\n")
    with pytest.raises(ConfigError, match=r"serve.yaml line 4: serve.on_demand .*of the form schema.name"):
        load_serve_config(path)
    path.write_text(text + "  on_demand_definitions: 0\n")
    with pytest.raises(ConfigError, match="at least 1"):
        load_serve_config(path)
