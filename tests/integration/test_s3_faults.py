"""Each request of a table to a server with the API of S3, failed in each way: no program ends, or does a thing twice.

deltalake's client repeats most of them itself, all by the same code. It does not repeat a conditional write, of which
it cannot know whether the server has it, nor a listing that breaks off. So conditional writes are tried in each way,
and of the other requests each in some. ``tests/spark/test_direct_checkpoint.py`` has those of Spark's client.
"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta import compaction, conditional_writes, owned_table, storage
from flushtracker.delta.conditional_writes import require_conditional_writes
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.faulty_proxy import RESET, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import store_options
from tests.support.s3_server import S3Server, running_s3
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import SOURCE
from tests.support.store_faults import WAYS, failing

_NOW: Final = datetime.now(timezone.utc)
_DAY_S: Final = 86_400
_ACKS: Final = 5

_CONDITIONAL: Final = {
    "creation": r"PUT .*/_delta_log/0{20}\.json",
    "commit": r"PUT .*/_delta_log/0{19}2\.json",
    "commit of a merge": r"PUT .*/_delta_log/0{19}5\.json",
}
_OTHERS: Final = {
    "rows": r"PUT .*/part-",
    "checkpoint": r"PUT .*\.checkpoint\.parquet",
    "its pointer": r"PUT .*/_last_checkpoint",
    "look for a table": r"GET .*list-type",
    "a commit": r"GET .*/_delta_log/\d{20}\.json",
    "rows for a merge": r"GET .*/part-",
    "deletion": r"DELETE .*/part-|POST .*delete",
}
"""Each of them fails in ways that differ from request to request, so that each way is tried at several."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as found:
        yield found


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 has a checkpoint, and version 4 is compacted. A store is tried again at once."""
    monkeypatch.setitem(owned_table.CONFIGURATION, "delta.checkpointInterval", "3")
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 4)
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)
    monkeypatch.setattr(conditional_writes, "TIMEOUT", timedelta(seconds=1))


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


def _require_done(s3: S3Server, proxy: FaultyProxy, name: str, request: str, way: str) -> None:
    """A driver creates its table, claims it, appends, and merges; each ack is there once."""
    uri = f"s3://bucket/{name}"
    options = store_options(proxy.port) | {"timeout": "1s", "retry_timeout": "20s"}
    left = s3.folder / name / "part-left-behind.parquet"
    with failing(proxy, request, way):
        acks = AckTable(uri, options)
        acks.fence_others()
        left.write_bytes(b"rows")
        s3.age(f"{name}/part-left-behind.parquet", _DAY_S)
        for lsn in range(1, _ACKS + 1):
            assert acks.append(_ack(lsn)) == 1
        assert AckReader(uri, options).last_ack(SOURCE) == _ACKS
    table = DeltaTable(uri, storage_options=store_options(s3.port))
    assert sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()) == [*range(1, _ACKS + 1)]


@pytest.mark.parametrize("way", in_turn([*WAYS], 3))
def test_conditional_write_that_fails_once_ends_no_program(s3: S3Server, proxy: FaultyProxy, way: str) -> None:
    """Whether or not the server has it, and although it may arrive after its next try."""
    for number, request in enumerate(_CONDITIONAL.values()):
        _require_done(s3, proxy, f"conditional{[*WAYS].index(way)}{number}", request, way)


@pytest.mark.parametrize("number", in_turn(range(len(WAYS)), 3))
def test_other_request_that_fails_once_ends_no_program(s3: S3Server, proxy: FaultyProxy, number: int) -> None:
    """Each request in some of the ways, and each way at some of the requests."""
    for place, request in enumerate(_OTHERS.values()):
        if place % 2 == number % 2:
            way = [*WAYS][(number + place // 2) % len(WAYS)]
            _require_done(s3, proxy, f"other{number}{place}", request, way)


@pytest.mark.parametrize("way", in_turn([*WAYS], 3))
def test_check_for_conditional_writes_is_made_though_a_request_fails(
    proxy: FaultyProxy, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """A job must not go on unchecked after one reset, neither of the first write nor of the second."""
    uri = f"s3://bucket/checked{[*WAYS].index(way)}"
    for request in ("PUT .*flushtracker-tried", "DELETE .*flushtracker-tried"):
        with failing(proxy, request, way):
            require_conditional_writes("storage (acks)", uri, store_options(proxy.port))
    assert caplog.text == ""


def test_commit_that_never_arrives_is_an_error(s3: S3Server, proxy: FaultyProxy) -> None:
    """Nothing is taken for durable because it was sent again and again."""
    options = store_options(proxy.port)
    acks = AckTable("s3://bucket/never", options)
    acks.fence_others()
    proxy.left()
    proxy.add(Fault(_CONDITIONAL["commit"], RESET, times=storage.RETRIES + 1))
    with pytest.raises(SinkError, match="cannot be written"):
        acks.append(_ack(1))
    assert proxy.left() == 0
    assert AckReader("s3://bucket/never", store_options(s3.port)).last_ack(SOURCE) is None


def test_commit_that_is_tried_again_is_refused_if_another_driver_has_come(
    s3: S3Server, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It conflicts with the other's claim, as its first try would have."""
    uri, options = "s3://bucket/fenced", store_options(proxy.port)
    acks, other = AckTable(uri, options), AckTable(uri, store_options(s3.port))
    acks.fence_others()
    acks.append(_ack(1))
    monkeypatch.setattr(
        storage, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: other.fence_others())
    )
    proxy.left()
    proxy.add(Fault(r"PUT .*/_delta_log/\d{20}\.json", RESET))
    with pytest.raises(SinkError, match=r"refused ack 0/2 .*another driver wrote to it at the same moment"):
        acks.append(_ack(2))
    assert proxy.left() == 0
    assert other.last_acks() == {SOURCE: 1}
