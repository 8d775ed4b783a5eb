"""What must be so of the tables on each object store, without Spark."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Final

import obstore
import pytest
from deltalake import DeltaTable
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import read_shape_log
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_NOW: Final = datetime.now(timezone.utc)


def ack(lsn: int) -> AckRow:
    """A row of an ack table."""
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


def one_of_several_writes_is_accepted(store: ObjectStore) -> None:
    """One of 8 conditional ones at the same moment succeeds, 40 times; the object is its."""

    def is_accepted(name: str, number: int) -> bool:
        try:
            obstore.put(store, name, str(number).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        for name in (f"race{number}" for number in range(40)):
            accepted = list(threads.map(is_accepted, [name] * 8, range(8)))
            assert accepted.count(True) == 1
            assert int(bytes(obstore.get(store, name).bytes())) == accepted.index(True)


def lost_answer_is_no_second_commit(
    uri: str, options: Callable[[int], Mapping[str, str]], proxy: FaultyProxy, fault: Fault
) -> None:
    """The client repeats the commit, and is refused by its own; the id of the commit tells.

    ``fault`` is one of the commit of version 2 or a later one.
    """
    acks = AckTable(uri, options(proxy.port))
    acks.fence_others()
    proxy.add(fault)
    assert [acks.append(ack(lsn)) for lsn in (1, 2)] == [1, 1]
    assert proxy.left() == 0
    table = DeltaTable(uri, storage_options=dict(options(proxy.port)))
    assert sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()) == [1, 2]


def log_is_claimed_appended_merged_and_read(log: str, options: dict[str, str]) -> None:
    """Each row is there once, before and after the merges."""
    table = create_shape_log(log, options)
    stale, claim, files = LogClaim(table), LogClaim(table), LogFiles(table, options)
    stale.take()
    claim.take()
    with pytest.raises(SinkError, match="this writer has been fenced"):
        stale.append([], stale.version_of(0))
    for number in range(8):
        tx = 1000 + 10 * number
        rows = [item((tx, 0), "insert", f"k{number}", {"id": f"k{number}"}), commit(tx)]
        claim.append([WrittenFile(files.write(arrow(rows), None, is_change=True))], claim.version_of(number))
    before = read_shape_log(log, "users", storage_options=options).rows
    report = ShapeLogUpkeep(log, settings=MergeSettings(merge_files=3), storage_options=options).run(_NOW)
    assert report.merges
    after = read_shape_log(log, "users", storage_options=options).rows
    assert before.num_rows == after.num_rows == 16
    assert after.sort_by("tx_offset")["key"] == before.sort_by("tx_offset")["key"]
