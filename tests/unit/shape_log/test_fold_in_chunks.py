"""Folding in chunks, of any size, gives what the plain fold gives of all items at once."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from flushtracker.errors import ConfigError, DecodeError, SinkError
from flushtracker.shape_log.fold import fold
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table import external_sort
from flushtracker.shape_log.table.arrow_types import typed_column
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.fold_items import ITEM_COLUMNS, ITEM_ORDER, ROW_ORDER, fold_items
from flushtracker.shape_log.table.folded_shape import _of_rows
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.truncates import Truncates
from flushtracker.shapes.item_key import key_values, partition_prefix
from flushtracker.shapes.table_binding import ColumnBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.bench.reads import append_rows
from tests.support.seeds import first_seed, in_turn
from tests.support.shape_log_rows import RandomLog, Row, append, snapshot_rows

_ITEMS: Final = pa.schema([(name, pa.int64() if name in ROW_ORDER else pa.large_string()) for name in ITEM_COLUMNS])
_TABLE: Final = ("public", "t")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Sizes so small that there is a boundary at each row, and several levels of runs."""
    draw = random.Random(5)  # noqa: S311  reproducible
    set_sizes(monkeypatch, 1, 1, 2)
    return draw


def set_sizes(monkeypatch: pytest.MonkeyPatch, held_bytes: int, rows: int, runs: int) -> None:
    monkeypatch.setattr(external_sort, "MOST_BYTES", held_bytes)
    monkeypatch.setattr(external_sort, "_HEAD_BYTES", 1)
    monkeypatch.setattr(external_sort, "ROWS", rows)
    monkeypatch.setattr(external_sort, "_MOST_RUNS", runs)


def random_items(draw: random.Random, count: int, *, is_right: bool) -> list[Row]:
    """Items in the order of their offsets; unless ``is_right``, some update a row that is not there."""
    rows, found = dict[str, None](), list[Row]()
    place = (0, 0)
    for _ in range(count):
        place = (place[0] + draw.randint(0, 1), place[1] + draw.randint(1, 3))
        partition = partition_prefix(_TABLE, draw.randrange(3))
        key = (partition if draw.random() < 0.8 else '"public"."t"') + key_values([str(draw.randrange(6)), "ü/\"'"])
        kind = draw.random()
        value = None
        if kind < 0.03:
            operation, key_text = "truncate", None
            rows.clear()
        elif kind < 0.08:
            operation, key_text = "truncate_partition", partition
            rows = {each: None for each in rows if not each.startswith(f"{partition}/")}
        elif kind < 0.25:
            operation, key_text = "delete", key
            rows.pop(key, None)
        else:
            is_update = draw.random() < 0.7 and (key in rows or not (is_right or draw.random() < 0.95))
            operation, key_text = "update" if is_update else "insert", key
            rows[key] = None
            chosen = draw.sample(["id", "a", "b", "ç\"'"], draw.randint(0, 4))
            value = json.dumps({name: draw.choice([None, "", "x\n", '"}{"', "Grüße"]) for name in chosen})
        item = (*place, operation, key_text, value)
        found.append(dict(zip(ITEM_COLUMNS, item, strict=True)))
    return found


def tables(draw: random.Random, items: Sequence[Row]) -> Iterator[pa.Table]:
    """The items in any order, divided anywhere."""
    left = draw.sample(items, len(items))
    while left:
        size = draw.randint(1, 8)
        yield pa.Table.from_pylist(left[:size], schema=_ITEMS)
        left = left[size:]


def folded(draw: random.Random, items: Sequence[Row]) -> list[tuple[str, dict[str, str | None]]]:
    truncates = Truncates()
    ordered = sort_tables(_of_rows(tables(draw, items), truncates), ITEM_ORDER)
    rows = sort_tables(fold_items(ordered, truncates), ROW_ORDER)
    return [(row["key"], json.loads(row["value"])) for table in rows for row in table.to_pylist()]


def plain(items: Sequence[Row]) -> list[tuple[str, dict[str, str | None]]]:
    """By the plain fold, in the order of the rows' last inserts."""
    rows = fold((str(each["operation"]), each["key"], each["value"]) for each in items)  # type: ignore[misc]
    places = {each["key"]: place for place, each in enumerate(items) if each["operation"] == "insert"}
    return sorted(rows.items(), key=lambda row: places[row[0]])


def test_random_items_fold_in_chunks_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation, keys with and without partitions, null and absent columns, several inserts of a row."""
    for seed in range(60):
        draw = random.Random(seed)  # noqa: S311  reproducible
        items = random_items(draw, draw.choice([1, 5, 60]), is_right=True)
        set_sizes(monkeypatch, draw.choice([1, 2000, 1 << 20]), draw.choice([1, 2, 7, 8192]), draw.randint(2, 5))
        assert folded(draw, items) == plain(items), f"seed {seed}"


def test_an_update_without_its_row_is_an_error_with_its_place_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the row is removed, truncated or inserted later, and so does not show."""
    wrong = 0
    for seed in range(first_seed(), first_seed() + 20):
        draw = random.Random(seed)  # noqa: S311  reproducible
        items = random_items(draw, 40, is_right=False)
        set_sizes(monkeypatch, draw.choice([1, 2000, 1 << 20]), draw.choice([1, 2, 7, 8192]), draw.randint(2, 5))
        try:
            expected = plain(items)
        except DecodeError:
            wrong += 1
            offsets = {str(LogOffset(each["tx_offset"], each["op_offset"])) for each in items}  # type: ignore[arg-type]
            with pytest.raises(DecodeError, match=r"^at .*: update of a row that the log has not inserted") as found:
                folded(draw, items)
            assert str(found.value).removeprefix("at ").partition(": ")[0] in offsets
        else:
            assert folded(draw, items) == expected, f"seed {seed}"
    assert 0 < wrong < 20


@pytest.mark.parametrize(
    ("operation", "key", "value", "problem"),
    [
        ("upsert", "k", "{}", "operation is 'upsert', which is none of a shape's log"),
        ("delete", None, None, "delete without a key in a shape's log"),
        ("truncate_partition", None, None, "truncate_partition without a key in a shape's log"),
    ],
)
def test_an_item_that_is_none_is_refused_as_by_the_plain_fold(
    operation: str, key: str | None, value: str | None, problem: str
) -> None:
    """With the same words."""
    items: list[Row] = [dict(zip(ITEM_COLUMNS, (1, 0, operation, key, value), strict=True))]
    for read in (plain, lambda found: folded(random.Random(1), found)):  # noqa: S311  reproducible
        with pytest.raises(DecodeError, match=problem):
            read(items)


class _Shape:
    """A log with snapshots taken again, and the rows that a naive reader has at any of its offsets."""

    def __init__(self, log: str, seed: int) -> None:
        self.log, self.made = log, RandomLog(seed, shape_ids=["users"], partitions=2)
        self.items = list[Row]()
        self.snapshots = list[ShapeSnapshot]()

    def write(self, transactions: int) -> None:
        rows = [row for _ in range(transactions) for row in self.made.transaction()]
        self.items += rows
        append(self.log, rows)

    def take_snapshot(self) -> None:
        """As of now, with a transaction that it does not see although it is before its LSN."""
        unseen = self.made.tx
        rows = dict(self.made.at["users"][-2][1])
        attempt = len(self.snapshots) + 1
        snapshot = ShapeSnapshot(attempt, MvccSnapshot(unseen, unseen + 1, (unseen,)), unseen, unseen + 1)
        self.snapshots.append(snapshot)
        found = snapshot_rows(snapshot, rows)
        self.items = [*found, *self.items]
        append(self.log, found)

    def rows(self, tx: int) -> dict[str, dict[str, str | None]]:
        """By the last snapshot that was taken by then."""
        snapshot = [each for each in self.snapshots if each.lsn <= tx][-1]

        def counts(row: Row) -> bool:
            at = int(str(row["tx_offset"]))
            if at == 0:
                return row["chunk"] == snapshot.attempt
            return at <= tx and not snapshot.contains(at, int(str(row["xid"])))

        counted = filter(counts, self.items)
        return fold((str(row["operation"]), row["key"], row["value"]) for row in counted)  # type: ignore[misc]


@pytest.mark.parametrize("seed", in_turn([1, 2]))
def test_readers_have_the_rows_at_every_commit_in_chunks_of_a_row(
    tmp_path: Path, tiny: random.Random, seed: int
) -> None:
    """For a shape whose snapshot is taken three times, each with a transaction that it does not see.

    Offsets before the first one are refused.
    """
    log = str(tmp_path / "log")
    create_shape_log(log)
    shape, reader, states, refused = _Shape(log, seed), ShapeLogReader(log), 0, 0
    for _ in range(3):
        shape.write(5)
        shape.take_snapshot()
        shape.write(tiny.randint(2, 4))
        for at in sorted({int(str(row["tx_offset"])) for row in shape.items} - {0}):
            try:
                found = reader.read_rows("users", LogOffset.last_of(at)).rows.to_pylist()
            except ConfigError:
                refused += 1
                continue
            expected = shape.rows(at).values()
            names = {name for row in expected for name in row}
            assert found == [{name: row.get(name) for name in names} for row in expected]
            states += 1
    assert min(states, refused) > 5


def test_rows_are_sorted_the_same_in_memory_and_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of different columns are filled with nulls; files of many levels are deleted."""
    draw = random.Random(3)  # noqa: S311  reproducible
    numbers = draw.sample(range(1000), 200)
    parts = [pa.table({"n": [n], f"of {n % 3}": [str(n)]}) for n in numbers]
    expected = [{"n": n, **{f"of {k}": str(n) if n % 3 == k else None for k in range(3)}} for n in sorted(numbers)]
    for sizes in ((1, 1, 2), (300, 7, 3), (1 << 20, 8192, 64)):
        set_sizes(monkeypatch, *sizes)
        found = list(sort_tables(iter(parts), ["n"]))
        assert [row for table in found for row in table.to_pylist()] == expected
        assert all(0 < len(table) <= sizes[1] for table in found)
    assert list(sort_tables([], ["n"])) == []


def test_a_folder_for_temporary_files_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The shape log can be read, so the error is not about that."""
    set_sizes(monkeypatch, 1, 1, 2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SinkError, match=rf"^temporary files in {tmp_path}/nowhere cannot be used: "):
        list(sort_tables([pa.table({"n": [1]}), pa.table({"n": [0]})], ["n"]))


def test_a_column_of_no_rows_has_its_type() -> None:
    """Such as a boolean, of which no text can be wrong."""
    column = ColumnBinding(1, "paid", 16, -1, 0)
    assert typed_column("paid", pa.array([], pa.string()), column).type == pa.bool_()


_READ: Final = """
import resource, sys
from flushtracker.shape_log.table import external_sort
from flushtracker.shape_log.table.reader import read_shape

external_sort.MOST_BYTES = 4 << 20
for shape_id in sys.argv[2:]:
    rows = sum(len(batch) for batch in read_shape(sys.argv[1], shape_id).batches)
    print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_depend_on_how_many_rows_are_folded(tmp_path: Path) -> None:
    """Six times as many rows; as Python objects they took 1.2 KB each, so 250,000 more would take 300 MB."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    append_rows(log, 50_000, shape_id="a")
    append_rows(log, 300_000, shape_id="b")
    done = subprocess.run(
        [sys.executable, "-c", _READ, log, "a", "b"], capture_output=True, text=True, check=True, timeout=600
    )
    (few, before_kb), (many, after_kb) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (50_000, 300_000)
    assert after_kb - before_kb < 100_000
