"""Any 64 bits as the time of a commit, from the message of the server to the rows of the log and back."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from struct import pack

from deltalake import DeltaTable, write_deltalake

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.change_columns import read_changes
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.snapshots import last_snapshots
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.write.packed_rows import pack_rows, unpacked
from flushtracker.shape_log.writer_group import WriterGroup, WriterSettings
from flushtracker.wal.pgoutput import Begin, decode
from tests.support.sample_registry import register, shape_entry
from tests.support.shape_log_rows import SOURCE

_TIMES = [-(2**63), 2**63 - 1, 0, 0, 0, -63_082_281_600_000_000, 252_455_616_000_000_000]
_WRITTEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def test_any_time_of_a_commit_is_passed_on_and_none_decides_what_is_kept(tmp_path: Path) -> None:
    """A history of 20 seconds has the last 20 of 60 transactions written a second apart, whatever their times."""
    rng, log = Random(44), str(tmp_path / "log")  # noqa: S311  repeatable
    create_shape_log(log)
    register(log, shape_entry())
    group, before, packed = WriterGroup(SOURCE, WriterSettings()), 9, list[bytes]()
    for number in range(60):
        tx, chosen = 100 + number, rng.choice([*_TIMES, rng.randrange(-(2**63), 2**63)])
        begin = decode(b"B" + pack(">QqI", tx, chosen, 700 + number))
        assert isinstance(begin, Begin)
        event = _event(before, tx, begin, "update" if number else "insert")
        assert ShapeChangesEvent.from_json(event).commit is not None
        (batch,) = group.handle_batch([read_changes(event)], [], 0)
        at = _WRITTEN + timedelta(seconds=number)
        packed += pack_rows(SOURCE, ["users"] * len(batch.rows), batch.rows, at)
        before = tx
    for rows in unpacked(packed):
        write_deltalake(log, rows, mode="append")
    assert len(read_shape_log(log, "users").rows) == 120
    kept = RetentionPolicy(timedelta(seconds=20), least_dropped=1)
    now = _WRITTEN + timedelta(seconds=60)
    assert ShapeLogUpkeep(log, f"{log}_shapes", retain=kept).run(now).folded_shapes == 1
    (fold,) = last_snapshots(DeltaTable(log)).values()
    assert fold.lsn == 100 + 40
    assert read_shape(log, "users").rows.to_pylist() == [{"id": "1", "n": "159"}]


def _event(before: int, tx: int, begin: Begin, operation: str) -> bytes:
    value = {"id": "1", "n": str(tx)}
    last = {"tx_offset": tx, "op_offset": 0}
    fields = {
        "v": 1,
        "source": SOURCE,
        "shape_id": "users",
        "xid": begin.xid,
        "follows": {"tx_offset": before, "op_offset": 0},
        "start": before == 9,
        "last_log_offset": last,
        "has_begin": True,
        "commit": {"commit_timestamp": begin.commit_timestamp, "end_lsn": tx + 1},
        "items": [
            {"offset": last, "operation": operation, "key": '"public"."users"/"1"', "value": value, "old_value": None}
        ],
    }
    return json.dumps(fields, separators=(",", ":")).encode()
