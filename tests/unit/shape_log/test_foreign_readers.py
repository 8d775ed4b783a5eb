"""DuckDB and Polars read shapes by the queries of docs/shape_log.md, and have what ``read_shape`` has.

Spark's query is in ``tests/spark/test_foreign_readers.py``.
"""

import random
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.busy_log import BusyLog
from tests.support.folded_log import folded
from tests.support.foreign_readers import ForeignReader, documented, duckdb_rows, folded_rows, joined, polars_rows
from tests.support.joined_history import TABLES, Identity
from tests.support.joined_log import JOINED_TABLES, entries, joined_shape, played, rows_at
from tests.support.joined_partitions import PartitionedWorld
from tests.support.sample_registry import register
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import RandomLog, append, commit, item, snapshot_rows

READERS: dict[str, ForeignReader] = {"duckdb": duckdb_rows, "polars": polars_rows}
_WRAPS, _PAST_A_WRAP = 1, 2
"""Seeds of logs whose xids begin again at 0 meanwhile, and of one whose 64-bit xids are above 2**32 all the time."""


@pytest.mark.parametrize("seed", in_turn([_WRAPS, _PAST_A_WRAP]))
@pytest.mark.parametrize("reader", in_turn([*READERS]))
def test_foreign_readers_have_the_rows_of_a_busy_log(tmp_path: Path, reader: str, seed: int) -> None:
    """The newest version, and earlier ones, while the log is appended to, merged, folded and snapshotted again."""
    chosen = random.Random(seed)  # noqa: S311  reproducible
    with BusyLog(str(tmp_path / "log"), seed) as busy:
        reads = found = 0
        while reads < 6 or min(busy.merges, busy.folds) < 2 or len(busy.snapshots) < 4:
            version = busy.version if reads % 2 else chosen.randint(busy.first_version, busy.version)
            rows = READERS[reader](busy.log, version, "users", "n")
            assert rows == folded_rows(busy.log, version, "users", "n"), f"version {version}"
            reads, found = reads + 1, found + len(rows)
    assert found


@pytest.mark.parametrize("partitions", [3, pytest.param(0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_foreign_readers_fold_every_operation(tmp_path: Path, reader: ForeignReader, partitions: int) -> None:
    """Transactions in parts; truncates, of partitions too; changed keys; nulls, unknown columns and odd texts."""
    log, rows = str(tmp_path / "log"), RandomLog(partitions, ["users"], partitions=partitions)
    create_shape_log(log)
    for _ in range(40):
        append(log, rows.transaction())
    for number in range(8):
        for fragment in rows.fragments():
            append(log, fragment)
        # The version before may be in the middle of a transaction.
        version, column = DeltaTable(log).version() - number % 2, "ac"[number // 2 % 2]
        assert reader(log, version, "users", column) == folded_rows(log, version, "users", column)


def test_foreign_readers_have_what_a_snapshot_has_not_seen_past_2_32_transactions(tmp_path: Path) -> None:
    """Its xids have 64 bits there, and those of rows 32. A reader that compares them as they are drops changes."""
    log, wrap = str(tmp_path / "log"), 2**32
    create_shape_log(log)
    snapshot = ShapeSnapshot(1, MvccSnapshot(wrap - 5, wrap - 1, (wrap - 5, wrap - 3)), 900, wrap + 2)
    append(log, snapshot_rows(snapshot, {"seen": {"id": "seen"}}))
    unseen, seen = [wrap - 5, wrap - 3, wrap - 1, 0, 1], [wrap - 4, wrap - 2]
    for tx, xid in enumerate([*unseen, *seen], 100):
        append(log, [row | {"xid": xid} for row in (item((tx, 0), "insert", str(xid), {"id": str(xid)}), commit(tx))])
    version = DeltaTable(log).version()
    expected = sorted([("seen", None), *((str(xid), None) for xid in unseen)], key=repr)
    for read in (folded_rows, *READERS.values()):
        assert read(log, version, "users", "n") == expected
    by_xip = documented("TYPE delta").replace("'$.unseen'", "'$.xip'").replace("BIGINT[][]", "BIGINT[]")
    naive = by_xip.replace("xid BETWEEN xids[1] AND xids[2]", "xid = xids")
    assert duckdb_rows(log, version, "users", "n", naive) != expected


@pytest.mark.parametrize(("membership", "partitioned"), [("IN", ("tasks", "projects")), ("NOT IN", ())])
def test_foreign_readers_join_the_tables_of_a_shape_with_subqueries(
    tmp_path: Path, membership: str, partitioned: tuple[str, ...]
) -> None:
    """With the rule's SQL for such shapes, while rows of both tables come and go; before and after a fold."""
    log, shape = str(tmp_path / "log"), joined_shape(membership, partitioned)
    create_shape_log(log)
    identities: dict[str, Identity] = dict.fromkeys(TABLES, "full")
    world = PartitionedWorld(random.Random(5), identities, partitioned=frozenset(partitioned))  # noqa: S311
    register(log, *entries([shape]))
    sql, program = (joined(word, JOINED_TABLES).replace("> 7", "> 3") for word in ("TYPE delta", "import polars"))
    seen = set[str]()
    for number in range(6):
        ((last, answers),) = played(log, world, [shape], 4)[-1:]
        if number == 3:
            assert folded(log, 0, last) == 1
        version, expected = DeltaTable(log).version(), answers[shape.id]
        assert rows_at(log, shape.id) == expected
        assert duckdb_rows(log, version, shape.id, "a", sql.replace("city IN", f"city {membership}")) == expected
        if membership == "IN":
            assert polars_rows(log, version, shape.id, "a", program) == expected
        seen.add(str(expected))
    assert len(seen) > 2


def test_a_pinned_snapshot_of_duckdb_is_the_newest_version(tmp_path: Path) -> None:
    """The page says that it may be named instead of a version."""
    log, rows = str(tmp_path / "log"), RandomLog(7, ["users"])
    create_shape_log(log)
    for _ in range(5):
        append(log, rows.transaction())
    newest = documented("TYPE delta").replace("VERSION 41", "PIN_SNAPSHOT /* 41 */")
    version = DeltaTable(log).version()
    assert duckdb_rows(log, version, "users", "a", newest) == folded_rows(log, version, "users", "a")


def test_foreign_readers_refuse_a_snapshot_of_an_earlier_release(tmp_path: Path) -> None:
    """It has no ranges, and to take it for one that has seen everything would lose changes."""
    log, rows = str(tmp_path / "log"), RandomLog(7, ["users"])
    create_shape_log(log)
    while rows.tx < 200:
        append(log, rows.transaction())
    snapshot = ShapeSnapshot(1, MvccSnapshot(50, 50), 150, 50)
    earlier = snapshot.to_json().replace(',"unseen":[]', "")
    *inserts, end = snapshot_rows(snapshot, {})
    append(log, [*inserts, {**end, "value": earlier}])
    version = DeltaTable(log).version()
    with pytest.raises(duckdb.InvalidInputException, match="run flushtracker snapshot --again"):
        duckdb_rows(log, version, "users", "a")
    with pytest.raises(KeyError, match="unseen"):
        polars_rows(log, version, "users", "a")


def test_a_snapshot_that_is_not_there_yet_leaves_a_foreign_reader_without_its_rows(tmp_path: Path) -> None:
    """Rows of a snapshot count only with the row that ends it."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    append(log, [item((0, 1), "insert", "k", {"id": "1"})])
    for reader in READERS.values():
        assert reader(log, DeltaTable(log).version(), "users", "n") == []
