"""The tables on ``gs://``, without Spark, on a stand-in that has the condition of Google's object store.

``tests/integration/test_s3_tables.py`` has what does not depend on the store.
"""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import IO, Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta.acks.reader import AckReader
from flushtracker.delta.acks.table import AckRow, AckTable
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.reader import read_shape_log
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.merge_plan import MergeSettings
from tests.support.faulty_proxy import RESET, Fault, faulty_proxy
from tests.support.object_store import google_options, running_store
from tests.support.racing_entries import GOOGLE_URI, race
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_NOW: Final = datetime.now(timezone.utc)


@pytest.fixture
def store() -> Iterator[tuple[int, IO[str]]]:
    with running_store() as found:
        yield found


def test_each_commit_is_on_the_condition_that_its_version_is_new(store: tuple[int, IO[str]]) -> None:
    """Without an option of the user's, so that it cannot replace another one's."""
    port, printed = store
    options = google_options(port)
    first, second = (AckTable("gs://bucket/acks", options) for _ in range(2))
    first.fence_others()
    second.fence_others()
    with pytest.raises(SinkError, match="this driver has been fenced"):
        first.append(_ack(1))
    found = [printed.readline().split() for _ in range(3)]
    assert found == [[f"acks/_delta_log/{version:020}.json", "generation=0"] for version in range(3)]
    assert second.append(_ack(2)) == 1
    assert AckReader("gs://bucket/acks", options).last_ack(SOURCE) == 2


def test_programs_that_race_replace_no_commit(store: tuple[int, IO[str]]) -> None:
    """Each entry of each program is there, whoever was first."""
    options = google_options(store[0])
    RegistryTable(GOOGLE_URI, options, create=True)
    race(store[0], "abc", 10, GOOGLE_URI)
    found = RegistryTable(GOOGLE_URI, options).written()
    assert sorted(key[2] for key in found) == sorted(f"{name}{number}" for name in "abc" for number in range(10))


@pytest.mark.parametrize("status", [500, 503, RESET])
def test_commit_whose_answer_is_lost_is_there_once(store: tuple[int, IO[str]], status: int) -> None:
    """The client repeats it and is refused by its own; the id of the commit tells."""
    with faulty_proxy(store[0]) as proxy:
        acks = AckTable("gs://bucket/acks", google_options(proxy.port))
        acks.fence_others()
        proxy.add(Fault(r"PUT .*log%2F\d{19}[2-9]%2Ejson", status, takes_effect=True))
        assert [acks.append(_ack(lsn)) for lsn in (1, 2)] == [1, 1]
        assert proxy.left() == 0
    table = DeltaTable("gs://bucket/acks", storage_options=google_options(store[0]))
    assert sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()) == [1, 2]


def test_log_is_claimed_appended_merged_and_read(store: tuple[int, IO[str]]) -> None:
    """Each row is there once, before and after the merges."""
    log, options = "gs://bucket/log", google_options(store[0])
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


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)
