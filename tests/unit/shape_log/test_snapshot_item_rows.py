"""Rows of the log for many shapes, from one pass over a table, against each shape's own."""

import random
from collections.abc import Iterator

import pytest

from flushtracker.postgres.copy_text import values_of
from flushtracker.shape_log.snapshot import item_rows
from flushtracker.shape_log.snapshot.item_rows import ItemRows, ItemTexts
from flushtracker.shape_log.snapshot.read_plan import ItemColumns, RowFilter, ShapeReads, TableReads
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation

_COLUMNS = ("id", "grp", "note")
_VALUES = ("1", "", "\\N", "a\\tb", "x" * 30)
_RELATION = Relation(1, "public", "t", "full", tuple(Column(name, 25) for name in _COLUMNS))
_FILTERS = tuple(RowFilter(where, _RELATION) for where in ("id || grp = '1'", "note IS NULL", "grp <> 'a\tb'"))
_Row = tuple[str, int, str, str]


class World:
    """Shapes with columns, keys and conditions at random, and lines as the server answers the query for all of them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311  repeatable
        self.wheres = [None, "a", "b", "c"][rng.randrange(2) : rng.randrange(2, 5)]
        filters = [(None, each) for each in rng.sample(_FILTERS, rng.randrange(4))]
        conditions = [*((where, None) for where in self.wheres), *filters]
        self.shapes = tuple(
            ShapeReads(f"s{n}", (TableReads(self._items(), *rng.choice(conditions)),))
            for n in range(rng.randrange(1, 12))
        )
        self.rows = [[rng.choice(_VALUES) for _ in _COLUMNS] for _ in range(rng.randrange(60))]
        self.true = [{where for where in "abc" if rng.random() < 0.4} for _ in self.rows]

    def _items(self) -> ItemColumns:
        columns = tuple(sorted(self.rng.sample(_COLUMNS, self.rng.randrange(1, 4)), key=_COLUMNS.index))
        keys = tuple(self.rng.sample(columns, self.rng.randrange(1, len(columns) + 1)))
        return ItemColumns(columns, keys, self.rng.choice(['"public"."t"', '"public"."t"/7']))

    def lines(self, items: ItemRows) -> Iterator[tuple[int, str]]:
        """The index and the line of each row that the query has."""
        selection = items.selection
        for index, (row, true) in enumerate(zip(self.rows, self.true, strict=True)):
            matches = [str(n) for n, where in enumerate(selection.conditions) if where in true]
            line = [row[_COLUMNS.index(name)] for name in selection.columns]
            if selection.has_all or matches:
                yield index, "\t".join([" ".join(matches), *line] if selection.is_numbered else line)

    def expected(self, shape: ShapeReads, indices: list[int]) -> list[_Row]:
        (reads,) = shape.tables
        texts = ItemTexts(reads.items, _COLUMNS)
        chosen = [index for index in indices if reads.where is None or reads.where in self.true[index]]
        if reads.filter is not None:
            matches = parse_where(reads.filter.where).bind(_RELATION)
            rows = {index: dict(zip(_COLUMNS, values_of("\t".join(self.rows[index])), strict=True)) for index in chosen}
            chosen = [index for index, row in rows.items() if matches(row)]
        keys, values = texts.of(["\t".join(self.rows[index]) for index in chosen])
        offsets = [100 + indices.index(index) for index in chosen]
        return sorted(zip([shape.shape_id] * len(chosen), offsets, keys, values, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_one_pass_has_the_rows_of_each_shape(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever columns, keys and conditions they have; in batches that are not much larger than their limits."""
    world = World(seed)
    monkeypatch.setattr(item_rows, "ROWS_PER_BATCH", world.rng.choice([1, 7, 1000]))
    monkeypatch.setattr(item_rows, "CHARACTERS_PER_BATCH", world.rng.choice([1, 200, 10**6]))
    items = ItemRows(world.shapes, 0)
    found = list(world.lines(items))
    batches = list(items.batches([line for _, line in found], 100))
    rows: list[_Row] = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(rows) == len(set(rows))
    for shape in world.shapes:
        of_shape = sorted(row for row in rows if row[0] == shape.shape_id)
        assert of_shape == world.expected(shape, [index for index, _ in found]), f"seed {seed}"
    assert {row[0] for row in rows} <= {shape.shape_id for shape in world.shapes}
    assert all(batch.num_rows < item_rows.ROWS_PER_BATCH + len(found) for batch in batches)


def test_same_conditions_are_evaluated_once() -> None:
    """Shapes may differ in their columns alone; a single condition needs no numbers."""
    items = ItemColumns(("id",), ("id",), "t")
    shapes = [ShapeReads(name, (TableReads(items, "a"),)) for name in "xyz"]
    selection = ItemRows(shapes, 0).selection
    assert (selection.conditions, selection.has_all, selection.is_numbered) == (("a",), False, False)


def test_a_condition_without_an_outcome_fails_its_shapes_alone() -> None:
    """All of them, with the reason; the rows of others are made."""
    relation = Relation(1, "public", "t", "full", (Column("id", 23), Column("x", 23)))
    items, divides = ItemColumns(("id",), ("id",), "t"), RowFilter("1 / x = 1", relation)
    shapes = [ShapeReads(name, (TableReads(items, None, divides),)) for name in "ab"]
    rows = ItemRows([*shapes, ShapeReads("c", (TableReads(items, None),))], 0)
    assert rows.selection.columns == ("id", "x")
    found = [row for batch in rows.batches(["1\t1", "2\t0"], 0) for row in batch.to_pylist()]
    assert [(row["shape_id"], row["value"]) for row in found] == [
        *((shape_id, '{"id":"1"}') for shape_id in "cab"),
        ("c", '{"id":"2"}'),
    ]
    assert rows.failures.keys() == {"a", "b"}
    assert "a division by zero" in str(rows.failures["a"])
