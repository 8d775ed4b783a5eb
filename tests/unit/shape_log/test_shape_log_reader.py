"""Reading shape logs without Spark: whole transactions, one version, and rows by folding."""

import os
import random
import re
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from flushtracker.errors import (
    ConfigError,
    DecodeError,
    PositionError,
    ShapeEndedError,
    SinkError,
    SnapshotMissingError,
)
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader, read_shape, read_shape_log
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.processes import run_to_end
from tests.support.sample_registry import _NOW, _TYPES, register, shape_entry, table_entry, taken, wanted_entry
from tests.support.seeds import seeds
from tests.support.shape_log_rows import SOURCE, RandomLog, append, commit, item, snapshot_rows

ROOT: Final = Path(__file__).parents[3]


def offsets(log: str, after: Position | None = None, *, changes_only: bool = False) -> list[tuple[int, int]]:
    rows = read_shape_log(log, "users", after, changes_only=changes_only).rows
    return list(zip(rows["tx_offset"].to_pylist(), rows["op_offset"].to_pylist(), strict=True))


def by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows by their column ``id``, without columns that are NULL or absent."""
    return {row["id"]: {name: value for name, value in row.items() if value is not None} for row in rows}


def test_readers_see_whole_transactions_only(log: str) -> None:
    """A transaction is written in several appends; until its commit row is there, none of it is read."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"}), commit(10), item((12, 0), "insert", "2", {"id": "2"})])
    assert offsets(log) == [(10, 0), LogOffset.last_of(10)]
    append(log, [item((12, 2), "insert", "3", {"id": "3"})])
    read = read_shape(log, "users")
    assert (read.rows.to_pylist(), read.bound) == ([{"id": "1"}], LogOffset.last_of(10))
    append(log, [commit(12)])
    assert offsets(log, read.position) == [(12, 0), (12, 2), LogOffset.last_of(12)]
    assert read_shape(log, "users").rows.to_pylist() == [{"id": "1"}, {"id": "2"}, {"id": "3"}]


def test_the_documented_program_reads_a_log(tmp_path: Path) -> None:
    """The block of docs/shape_log.md runs beside a folder `data` like that of `make run`."""
    log = str(tmp_path / "data" / "log")
    create_shape_log(log)
    shape = {"shape_id": "orders-original"}
    append(log, [item((100, 0), "insert", "1", {"id": "1"}, **shape), commit(100, **shape)])
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "shape_log.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "read_shape_log" in block]
    command = [sys.executable, "-c", f"{block}\nprint(later.rows.num_rows)"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_to_end(command, cwd=tmp_path, env=environ, timeout=60)
    assert done.stdout.splitlines() == [f"1 {LogOffset.last_of(100)}", "0"], done.stderr


def test_state_at_an_offset_has_whole_transactions_only(log: str) -> None:
    """An offset inside a transaction shows what was there before it; one at its last item, all of it."""
    append(log, [item((10, 0), "insert", "1", {"id": "1", "n": "a"}), commit(10)])
    append(log, [item((12, n), "update", "1", {"id": "1", "n": str(n)}) for n in (0, 2)])
    append(log, [commit(12)])
    found = {}
    for at in [LogOffset(9, 0), LogOffset(10, 0), LogOffset(12, 0), LogOffset(12, 1), LogOffset(12, 2)]:
        read = read_shape(log, "users", at)
        found[at] = read.rows.to_pylist(), None if read.bound is None else read.bound.tx_offset
    first = [{"id": "1", "n": "a"}], 10
    last = [{"id": "1", "n": "2"}], 12
    assert list(found.values()) == [([], None), first, first, first, last]


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_random_logs_fold_as_a_naive_reader_does(log: str, seed: int) -> None:
    """At every transaction and at the end; the log's tail is a transaction without its end."""
    made, draw = RandomLog(seed), random.Random(seed)  # noqa: S311  reproducible
    for _ in range(12):
        for fragment in made.fragments():
            append(log, fragment)
    tail = [row for row in made.transaction() if row["operation"] != "commit"]
    if tail:
        append(log, tail)
    for shape_id, states in made.at.items():
        written = [each for each in states if each[0].tx_offset < made.tx]
        if not written:
            continue
        for at, rows in draw.sample(written, min(3, len(written))):
            found = read_shape(log, shape_id, at)
            assert by_key(found.rows.to_pylist()) == by_key(list(rows.values()))
            assert found.bound == LogOffset.last_of(at.tx_offset)
        _, last = written[-1]
        assert by_key(read_shape(log, shape_id).rows.to_pylist()) == by_key(list(last.values()))
        whole = read_shape_log(log, shape_id).rows
        assert set(whole["shape_id"].to_pylist()) == {shape_id}
        for at, _ in draw.sample(written, min(3, len(written))):
            later = read_shape_log(log, shape_id, Position(SOURCE, at.tx_offset, 0)).rows.to_pylist()
            assert later == [row for row in whole.to_pylist() if row["tx_offset"] > at.tx_offset]


def test_typed_columns_are_those_of_the_table(log: str) -> None:
    """The registry knows the columns, their order and their types; a column without values is still one."""
    value = {"paid": "t", "id": "7", "price": "12.30", "day": "2026-01-02", "at": "2026-01-02 03:04:05+00"}
    append(log, [item((10, 0), "insert", "7", {**value, "data": "\\x00ff"}), commit(10)])
    with pytest.raises(ConfigError, match=r"the types of shape users of source .* are not known"):
        read_shape(log, "users", typed=True)
    register(log, shape_entry(), table_entry())
    read = read_shape(log, "users", typed=True)
    assert read.rows.column_names == list(_TYPES)
    expected = {"id": 7, "price": Decimal("12.30"), "paid": True, "day": date(2026, 1, 2), "at": _NOW, "note": None}
    assert read.rows.to_pylist() == [{**expected, "data": b"\x00\xff"}]
    assert read_shape(log, "users").rows.to_pylist() == [{**value, "data": "\\x00ff", "note": None}]
    assert read.to_pandas()["id"].tolist() == [7]


def test_value_that_does_not_fit_its_type_is_an_error_that_hides_it(log: str) -> None:
    """Arrow has no infinite date; the text can still be read."""
    append(log, [item((10, 0), "insert", "7", {"id": "7", "day": "infinity"}), commit(10)])
    register(log, shape_entry(), table_entry())
    with pytest.raises(
        DecodeError, match=r"^column day has a value that does not fit its type \(type OID 1082\); read"
    ):
        read_shape(log, "users", typed=True)
    assert read_shape(log, "users").rows["day"].to_pylist() == ["infinity"]


def test_removed_or_ended_shape_says_when_and_why(log: str) -> None:
    """It can be read nevertheless, until its log is deleted."""
    append(log, [item((10, 0), "insert", "7", {"id": "7"}), commit(10)])
    removed_at = LogOffset(0x16E2B68, 4)
    register(log, shape_entry(removed_at=removed_at, ended_because="column name of table public.users was dropped"))
    reason = "has ended because column name of table public.users was dropped, at 0/16E2B68.4; its log is still there"
    for read in (read_shape, read_shape_log):
        with pytest.raises(ShapeEndedError, match=f"^shape users of source {SOURCE} {reason}"):
            read(log, "users")
    assert read_shape(log, "users", even_if_ended=True).rows.to_pylist() == [
        {"id": "7"},
    ]
    register(log, shape_entry("gone", removed_at=removed_at))
    with pytest.raises(ShapeEndedError, match=r"was removed by its owner, at .*, and its log has no rows \(any more\)"):
        read_shape(log, "gone", even_if_ended=True)


def test_a_shape_of_another_writer_is_named_with_it(log: str) -> None:
    """Its rows would be waited for for ever: this log will never have any."""
    entry = shape_entry()
    register(log, replace(entry, definition=replace(entry.definition, writer="search")), table_entry())
    expected = f"^shape users of source {SOURCE} is not in the shape log: its writer is 'search'; read it where that"
    for read in (read_shape, read_shape_log):
        with pytest.raises(ConfigError, match=expected):
            read(log, "users")


def test_shapes_and_sources_that_are_not_there_are_named(log: str, tmp_path: Path) -> None:
    """An id that is not in the log, several sources, a folder without a log, a Delta table of another kind."""
    append(log, [commit(10), commit(10, source="b/1/s"), commit(10, shape_id="it's")])
    with pytest.raises(ConfigError, match=r"has no shape user; check its id"):
        read_shape(log, "user")
    with pytest.raises(ConfigError, match=f"shape users has the sources {SOURCE}, b/1/s; name one as source"):
        read_shape(log, "users")
    with pytest.raises(ConfigError, match="has no shape users of source c/1/s; check"):
        read_shape(log, "users", source="c/1/s")
    assert read_shape_log(log, "users", source="b/1/s").rows["source"].to_pylist() == ["b/1/s"]
    assert read_shape_log(log, "it's").bound == LogOffset.last_of(10)
    with pytest.raises(SinkError, match=r"there is no shape log at .*; name the storage of `flushtracker write`"):
        read_shape(str(tmp_path / "nothing"), "users")
    register(log, shape_entry())
    with pytest.raises(SinkError, match=r"without the columns shape_id, tx_offset, .*, so it is not the shape log"):
        read_shape(f"{log}_shapes", "users")
    with pytest.raises(SinkError, match="there is no registry table at"):
        read_shape(log, "users", shapes=str(tmp_path / "nothing"))


def test_offsets_outside_the_log_are_refused(log: str) -> None:
    """Who reads the rows at an offset that the log does not have must hear of it."""
    register(log, shape_entry())
    append(log, [commit(10, shape_id="orders"), item((12, 0), "insert", "1", {"id": "1"})])
    for offset in (LogOffset(9, 1), LogOffset(12, 0)):
        with pytest.raises(ConfigError, match=r"^at is 0/.*, but the log of shape users .* only reaches 0/9\+0"):
            read_shape(log, "users", offset)
    with pytest.raises(ConfigError, match=r"^at is 0/8\+5, but the log .* starts after 0/9\+0; name that or"):
        read_shape(log, "users", LogOffset(8, 5))
    assert len(read_shape(log, "users", LogOffset(9, 0)).rows) == 0
    with pytest.raises(ConfigError, match=r"^at is 0/B\+0, but the log .* only reaches 0/A\+inf; read it again"):
        read_shape(log, "orders", LogOffset(11, 0))


def test_a_position_is_of_one_log_and_one_source(log: str) -> None:
    """A follower of a log that was restored from an older copy must hear of it, and not wait for ever."""
    append(log, [commit(10), commit(20, source="b/1/s"), item((12, 0), "insert", "1", {"id": "1"})])
    (first, other) = (read_shape_log(log, "users", source=source).position for source in (SOURCE, "b/1/s"))
    assert (str(first), str(other)) == (f"1:0/A:0:{SOURCE}", "1:0/14:0:b/1/s")
    append(log, [commit(12)])
    assert offsets(log, first) == [(12, 0), (12, OP_INFINITY)]
    with pytest.raises(ConfigError, match=rf"^source is b/1/s, but position {first} is of source {SOURCE}; leave out"):
        read_shape_log(log, "users", first, "b/1/s")
    for ahead in (replace(first, tx_offset=16), replace(first, attempt=1)):
        problem = rf"^position {ahead} is ahead of the log of shape users .* has reached 1:0/C:0:{SOURCE}: .*older copy"
        with pytest.raises(PositionError, match=problem):
            read_shape_log(log, "users", ahead)


def test_a_shape_goes_on_under_the_source_that_follows_a_lost_slot(log: str) -> None:
    """Under the same id. Readers that name no source read that one, once it has a snapshot; followers are led there."""
    append(log, [*snapshot_rows(taken(1, "5:5:", 5), {"1": {"id": "1"}}), commit(10)])
    position = read_shape_log(log, "users").position
    again = f"{SOURCE}/1"
    # Its LSNs are those of a restored server, and lower.
    append(log, [item((7, 0), "insert", "2", {"id": "2"}, source=again), commit(7, source=again)])
    for begun in (None, position):
        with pytest.raises(SnapshotMissingError, match=f"shape users of source {again} has no snapshot yet"):
            read_shape_log(log, "users", begun)
    append(log, [row | {"source": again} for row in snapshot_rows(taken(2, "3:3:", 3), {"3": {"id": "3"}})])
    assert sorted(read_shape(log, "users").rows["id"].to_pylist()) == ["2", "3"]
    healed = read_shape_log(log, "users", position)
    assert [(row["source"], row["tx_offset"], row["operation"], row["key"]) for row in healed.rows.to_pylist()] == [
        (again, 0, "delete", "1"),
        (again, 0, "insert", "3"),
        (again, 0, "commit", None),
    ]
    assert (healed.bound, healed.position) == (LogOffset.last_of(0), Position(again, 0, 2))
    later = read_shape_log(log, "users", healed.position)
    assert [(row["tx_offset"], row["operation"]) for row in later.rows.to_pylist()] == [(7, "insert"), (7, "commit")]
    assert later.position == Position(again, 7, 2)
    assert len(read_shape_log(log, "users", later.position).rows) == 0
    assert read_shape(log, "users", source=SOURCE).rows["id"].to_pylist() == ["1"]
    assert read_shape_log(log, "users", position, SOURCE).position == position


def test_a_follower_that_has_all_up_to_the_start_gets_the_difference_after_that(log: str) -> None:
    """The shape ended, and began again, at the follower's last transaction: who compares offsets sees it as new.

    The next position is that of the difference, and names the new snapshot, so it comes once; the next one comes after
    it, whether or not anything was written since.
    """
    append(log, [*snapshot_rows(taken(1, "5:5:", 5), {"1": {"id": "1"}}), commit(10)])
    position = read_shape_log(log, "users").position
    for incarnation, row in ((2, "2"), (3, "3")):
        begun = replace(taken(incarnation, "12:12:", 12), incarnation=incarnation, starts_after=10)
        append(log, snapshot_rows(begun, {row: {"id": row}}))
        later = read_shape_log(log, "users", position)
        assert [(row["tx_offset"], row["operation"], row["key"]) for row in later.rows.to_pylist()] == [
            (9 + incarnation, "delete", str(incarnation - 1)),
            (9 + incarnation, "insert", row),
            (9 + incarnation, "commit", None),
        ]
        position = later.position
        assert position == Position(SOURCE, 9 + incarnation, incarnation)
        assert len(read_shape_log(log, "users", position).rows) == 0
    append(log, [item((20, 0), "insert", "4", {"id": "4"}), commit(20)])
    assert offsets(log, position) == [(20, 0), (20, OP_INFINITY)]
    # From two incarnations before, and to the same: a row commit alone.
    twice = read_shape_log(log, "users", Position(SOURCE, 10, 1))
    assert [(row["tx_offset"], row["key"]) for row in twice.rows.to_pylist()] == [(11, "1"), (11, "3"), (11, None)]
    assert offsets(log, twice.position) == [(20, 0), (20, OP_INFINITY)]
    same = replace(taken(4, "32:32:", 32), incarnation=4, starts_after=30)
    append(log, snapshot_rows(same, {"3": {"id": "3"}, "4": {"id": "4"}}))
    assert offsets(log, read_shape_log(log, "users", Position(SOURCE, 20, 3)).position) == []
    assert offsets(log, Position(SOURCE, 20, 3)) == [(24, OP_INFINITY)]


def test_a_follower_of_a_source_that_was_replaced_is_told_if_its_rows_are_not_known(log: str) -> None:
    """It began without a snapshot, or its log is deleted; or the new source has no snapshot to continue from."""
    append(log, [*snapshot_rows(taken(1, "5:5:", 5), {"1": {"id": "1"}}), commit(10)])
    position, again = read_shape_log(log, "users").position, f"{SOURCE}/1"
    append(log, [row | {"source": again} for row in snapshot_rows(taken(2, "3:3:", 3), {"3": {"id": "3"}})])
    for unknown in (replace(position, attempt=0), replace(position, tx_offset=16)):
        with pytest.raises(PositionError, match=r"read the shape again from its beginning$"):
            read_shape_log(log, "users", unknown)
    register(log, shape_entry(), replace(shape_entry(), source=f"{SOURCE}/2"))
    append(log, [commit(5, source=f"{SOURCE}/2")])
    problem = (
        f"^position {position} is of source {SOURCE}, and shape users was begun again under source {SOURCE}/2; the"
    )
    with pytest.raises(PositionError, match=problem):
        read_shape_log(log, "users", position)
    DeltaTable(log).delete(f"source = '{SOURCE}'")
    register(log, replace(wanted_entry(), source=f"{SOURCE}/2"))
    with pytest.raises(PositionError, match=problem):
        read_shape_log(log, "users", position)
    DeltaTable(log).delete(f"source = '{SOURCE}/2'")
    with pytest.raises(PositionError, match=rf"begun again under source {SOURCE}/2; the log no longer has"):
        read_shape_log(log, "users", position)


def test_a_follower_without_a_snapshot_continues_past_a_fold(log: str) -> None:
    """Also without a registry table: the fold is no snapshot of the table, of which the follower would lack rows."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"}), commit(10), commit(12)])
    position = read_shape_log(log, "users").position
    append(log, snapshot_rows(ShapeSnapshot.fold(1, 10, 7), {"1": {"id": "1"}}))
    append(log, [item((14, 0), "insert", "2", {"id": "2"}), commit(14)])
    assert offsets(log, position) == [(14, 0), (14, OP_INFINITY)]


def test_a_follower_may_begin_before_the_first_transaction(log: str) -> None:
    """It has part of a transaction at first, and then all of it."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"})])
    begun = read_shape_log(log, "users")
    assert (begun.rows.num_rows, begun.bound, str(begun.position)) == (0, None, f"1:0/0:0:{SOURCE}")
    assert read_shape_log(log, "users", begun.position).position == begun.position
    append(log, [commit(10)])
    assert offsets(log, begun.position) == [(10, 0), (10, OP_INFINITY)]


def test_update_of_a_row_that_was_there_before_the_shape_is_an_error(log: str) -> None:
    """Folding would give part of a row."""
    append(log, [item((10, 0), "update", "7", {"id": "7"}), commit(10)])
    with pytest.raises(DecodeError, match="the table had rows before the shape started"):
        read_shape(log, "users")


def test_follower_looks_again_only_if_a_table_has_changed(log: str) -> None:
    """Both the log and the registry, which may say that the shape has ended."""
    register(log, shape_entry())
    append(log, [commit(10)])
    reader = ShapeLogReader(log)
    assert reader.has_changed()
    first = reader.read_log("users")
    assert first.bound == LogOffset.last_of(10)
    assert not reader.has_changed()
    append(log, [commit(12)])
    assert reader.has_changed()
    assert reader.read_log("users", first.position).rows["tx_offset"].to_pylist() == [12]
    register(log, shape_entry(removed_at=LogOffset(12, 0)))
    assert reader.has_changed()
    with pytest.raises(ShapeEndedError):
        reader.read_log("users")


def test_shape_begins_with_its_snapshot_and_what_that_contains_is_left_out(log: str) -> None:
    """The bound is before the first transaction until there is one."""
    append(log, snapshot_rows(taken(7, "10:31:12", 40), {"1": {"id": "1"}}))
    read = read_shape(log, "users")
    assert (read.rows.to_pylist(), read.bound) == ([{"id": "1"}], LogOffset(0, OP_INFINITY))
    assert read.position == Position(SOURCE, 0, 7)
    assert offsets(log) == [(0, 1), (0, OP_INFINITY)]
    for tx in (12, 30, 31):  # In progress, contained, and begun later.
        append(log, [item((tx, 0), "insert", f"k{tx}", {"id": f"k{tx}"}), commit(tx)])
    counted = [(12, 0), (12, OP_INFINITY), (31, 0), (31, OP_INFINITY)]
    assert offsets(log) == [(0, 1), (0, OP_INFINITY), *counted]
    assert offsets(log, changes_only=True) == offsets(log, read.position) == counted
    assert [row["id"] for row in read_shape(log, "users").rows.to_pylist()] == ["1", "k12", "k31"]


def test_shape_without_its_snapshot_is_not_read_as_if_it_were_whole(log: str) -> None:
    """Its log alone can be, by who asks for it; and a shape that wants no snapshot has none."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"}), commit(10)])
    assert offsets(log) == [(10, 0), (10, OP_INFINITY)]
    register(log, wanted_entry())
    problem = r"^shape users of source .* has no snapshot yet .*; run flushtracker snapshot, or .* with changes_only"
    for read in (read_shape, read_shape_log):
        with pytest.raises(SnapshotMissingError, match=problem):
            read(log, "users")
    assert offsets(log, changes_only=True) == [(10, 0), (10, OP_INFINITY)]


def test_a_follower_from_before_the_first_snapshot_begins_again(log: str) -> None:
    """It has none of the rows that the table had before, and has changes that the snapshot contains, too."""
    append(log, [item((10, 0), "insert", "1", {"id": "1"}), commit(10)])
    begun = read_shape_log(log, "users", changes_only=True).position
    append(log, snapshot_rows(taken(7, "9:9:", 9), {"0": {"id": "0"}}))
    with pytest.raises(PositionError, match=rf"^position {begun} is from before shape users .* had a snapshot of its "):
        read_shape_log(log, "users", begun)
    fold = ShapeSnapshot.fold(8, 10, 10)
    append(log, snapshot_rows(fold, {"0": {"id": "0"}, "1": {"id": "1"}}))
    register(log, wanted_entry())
    with pytest.raises(PositionError, match=r"is from before shape users .* read the shape again from its beginning$"):
        read_shape_log(log, "users", begun)
    assert offsets(log, replace(begun, attempt=7)) == []


def test_snapshot_taken_again_replaces_the_one_before(log: str) -> None:
    """In whatever order the two were appended."""
    append(log, snapshot_rows(taken(8, "20:20:", 40), {"2": {"id": "2"}}))
    append(log, snapshot_rows(taken(7, "10:10:", 20), {"1": {"id": "1"}}))
    read = read_shape(log, "users")
    assert (read.rows.to_pylist(), read.position.attempt) == ([{"id": "2"}], 8)


def test_a_snapshot_taken_again_between_two_polls_is_noticed_by_the_position_alone(log: str) -> None:
    """An insert and a delete are in the new snapshot, so the follower gets the difference instead of them.

    Any program may have kept the position, as text; also when the log gets there only after a poll since.
    """
    append(log, [*snapshot_rows(taken(1, "10:10:", 10), {}), item((10, 0), "insert", "1", {"id": "1"}), commit(10)])
    kept = str(read_shape_log(log, "users").position)
    append(log, snapshot_rows(taken(2, "31:31:", 40), {"2": {"id": "2"}}))
    second = read_shape_log(log, "users", Position.parse(kept))
    changes = [("delete", "1"), ("insert", "2"), ("commit", None)]
    assert [(row["operation"], row["key"]) for row in second.rows.to_pylist()] == changes
    assert (second.rows["tx_offset"].to_pylist(), second.position) == ([11] * 3, Position(SOURCE, 11, 2))
    append(log, [item((20, 0), "insert", "2", {"id": "2"}), commit(20), item((30, 0), "delete", "1"), commit(30)])
    later = read_shape_log(log, "users", Position.parse(kept))
    assert [(row["operation"], row["key"]) for row in later.rows.to_pylist()] == changes
    assert (later.rows["tx_offset"].to_pylist(), later.position) == ([30] * 3, Position(SOURCE, 30, 2))
    for position in (second.position, later.position):
        rest = read_shape_log(log, "users", position)
        assert (len(rest.rows), rest.position) == (0, later.position)
    with pytest.raises(PositionError, match=r"is from before shape users .* had a snapshot of its table"):
        read_shape_log(log, "users", Position(SOURCE, 10, 0))
    again = read_shape_log(log, "users")
    append(log, [item((50, 0), "insert", "3", {"id": "3"}), commit(50)])
    later = read_shape_log(log, "users", again.position)
    assert (later.rows["tx_offset"].to_pylist(), later.position) == ([50, 50], Position(SOURCE, 50, 2))
    has_all = read_shape_log(log, "users", Position(SOURCE, 40, 1))
    assert (has_all.rows["operation"].to_pylist(), has_all.position) == (["commit"], Position(SOURCE, 41, 2))
    later = read_shape_log(log, "users", has_all.position)
    assert (later.rows["tx_offset"].to_pylist(), later.position) == ([50, 50], Position(SOURCE, 50, 2))


def test_snapshot_among_thousands_of_running_transactions(log: str) -> None:
    """As many as a server may have connections and prepared transactions; with ids past 2**32."""
    running = tuple(range(2**32 - 9001, 2**32 + 9000, 2))
    snapshot = ShapeSnapshot(1, MvccSnapshot(running[0], 2**32 + 9001, running), 40_000, 2**32 + 9003)
    xids = [2**32 - 9002, *(xid % 2**32 for xid in range(2**32 - 9001, 2**32 + 9003))]
    rows = [item((tx, OP_INFINITY), "commit") | {"xid": xid} for tx, xid in enumerate(xids, start=1)]
    append(log, [*snapshot_rows(snapshot, {}), *rows])
    found = read_shape_log(log, "users", changes_only=True).rows["tx_offset"].to_pylist()
    assert found == [tx for tx, xid in enumerate(xids, start=1) if not snapshot.contains(tx, xid)]
    assert 9000 < len(found) < 9010
