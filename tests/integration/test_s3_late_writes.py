"""A request to a server with the API of S3 arrives late, when the upkeep of the table has deleted what was there.

``tests/unit/delta/test_late_writes.py`` has what arrives before that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta import compaction, owned_table, storage
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.faulty_proxy import HELD, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import store_options
from tests.support.s3_server import S3Server, running_s3
from tests.support.shape_log_rows import SOURCE

_NOW: Final = datetime.now(timezone.utc)
_DAY_S: Final = 86_400
_URI: Final = "s3://bucket/acks"
_OK: Final = 200


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third version has a checkpoint, and each sixth is compacted."""
    monkeypatch.setitem(owned_table.CONFIGURATION, "delta.checkpointInterval", "3")
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 6)
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)


@contextmanager
def _store() -> Iterator[tuple[S3Server, FaultyProxy, dict[str, str]]]:
    with running_s3() as s3, faulty_proxy(s3.port) as proxy:
        yield s3, proxy, store_options(proxy.port)


def _impatient(options: dict[str, str]) -> dict[str, str]:
    return options | {"timeout": "1s", "max_retries": "0"}


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


def _append(s3: S3Server, options: dict[str, str], last: int) -> None:
    """Another driver appends acks from 3 to ``last``; upkeep finds what was there before to be a day old."""
    acks = AckTable(_URI, options)
    acks.fence_others()
    for lsn in range(3, last + 1):
        acks.append(_ack(lsn))
        s3.age("acks/", _DAY_S)


def _require(options: dict[str, str], lsns: list[int]) -> None:
    """The table has these acks, for readers and for a driver that starts now, and takes another one."""
    assert AckReader(_URI, options).last_ack(SOURCE) == lsns[-1]
    acks = AckTable(_URI, options)
    assert acks.last_acks() == {SOURCE: lsns[-1]}
    acks.fence_others()
    acks.append(_ack(lsns[-1] + 1))
    acks._owned.compact()
    rows = table_rows(DeltaTable(_URI, storage_options=options), ["ack_lsn"])
    assert sorted(rows["ack_lsn"].to_pylist()) == [*lsns, lsns[-1] + 1]


def test_commit_that_arrives_after_its_number_was_cleaned_up_is_not_read() -> None:
    """A checkpoint has replaced the commit of this number, so the store accepts it; nobody looks there any more."""
    with _store() as (s3, proxy, options):
        first = AckTable(_URI, _impatient(options))
        first.fence_others()
        first.append(_ack(1))
        proxy.add(Fault(r"PUT .*/_delta_log/\d{20}\.json", HELD, times=storage.RETRIES + 1))
        with pytest.raises(SinkError, match="timed out"):
            first.append(_ack(2))
        _append(s3, options, 9)
        reader = AckReader(_URI, options)
        assert reader.last_ack(SOURCE) == 9
        assert min(status for _, status in proxy.release()) == _OK
        assert reader.last_ack(SOURCE) == 9
        _require(options, [1, *range(3, 10)])


def test_pointer_to_a_checkpoint_that_arrives_late_is_not_followed() -> None:
    """The checkpoint that it names was deleted, with the commits after it, because there are later ones."""
    with _store() as (s3, proxy, options):
        first = AckTable(_URI, _impatient(options))
        first.fence_others()
        proxy.add(Fault("PUT .*/_last_checkpoint", HELD))
        first.append(_ack(1))
        assert proxy.held() == 1
        _append(s3, options, 9)
        log = {path.name for path in (s3.folder / "acks/_delta_log").iterdir()}
        assert f"{2:020}.checkpoint.parquet" not in log
        assert [status for _, status in proxy.release()] == [_OK]
        _require(options, [1, *range(3, 10)])


def test_deletion_that_arrives_late_deletes_nothing_else() -> None:
    """Names are never used again."""
    with _store() as (s3, proxy, options):
        first = AckTable(_URI, _impatient(options))
        first.fence_others()
        proxy.add(Fault("POST .*delete", HELD), Fault("(POST .*delete|DELETE .*/part-)", HELD))
        for lsn in (1, 2, 3, 4):
            first.append(_ack(lsn))
            s3.age("acks/", _DAY_S)
        (s3.folder / "acks/part-left-behind.parquet").write_bytes(b"rows")
        s3.age("acks/", _DAY_S)
        first._owned.compact()
        assert proxy.held() == 2
        _append(s3, options, 9)
        assert len(proxy.release()) == 2
        _require(options, list(range(1, 10)))
