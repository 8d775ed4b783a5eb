"""An object store commits, and its answer is lost.

In a reset, in an error whose retry meets its own commit, or in a timeout.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from flushtracker.delta import storage
from flushtracker.delta.commits import Commits
from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.log_offset import LogOffset
from tests.support.faulty_proxy import HELD, RESET, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import running_store, store_options
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_COMMIT: Final = r"PUT .*/_delta_log/\d{20}\.json"
_LOST: Final = {
    "retried": Fault(_COMMIT, 500, takes_effect=True),
    "reset": Fault(_COMMIT, RESET, takes_effect=True),
    "timeout": Fault(_COMMIT, HELD, takes_effect=True),
}
lost = pytest.mark.parametrize("how", in_turn([*_LOST]))
_CREATE: Final[Mapping[str, Callable[[str, dict[str, str]], object]]] = {
    "acks": AckTable,
    "log": create_shape_log,
    "shapes": lambda uri, options: RegistryTable(uri, options, create=True),
    "letters": lambda uri, options: DeadLetterTable(uri, options).append([], "query", 7),
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries."""
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)


@contextmanager
def _store() -> Iterator[tuple[FaultyProxy, dict[str, str]]]:
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        yield proxy, store_options(proxy.port) | {"timeout": "2s"}


@contextmanager
def _each_lost(proxy: FaultyProxy, how: str) -> Iterator[None]:
    """The answer to the next commit is lost."""
    proxy.add(_LOST[how])
    yield
    assert proxy.left() == 0


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


@lost
@pytest.mark.parametrize("name", _CREATE)
def test_table_is_opened_after_a_lost_answer_to_its_creation(name: str, how: str) -> None:
    """The first start of a job on a store does not end, and the table is created once."""
    with _store() as (proxy, options):
        with _each_lost(proxy, how):
            _CREATE[name](f"s3://bucket/{name}", options)
        assert DeltaTable(f"s3://bucket/{name}", storage_options=options).version() == 0


@pytest.mark.parametrize("name", _CREATE)
def test_creation_that_never_arrived_is_an_error(name: str) -> None:
    """No table is taken for created because it was sent; the next start creates it."""
    with _store() as (proxy, options):
        proxy.add(Fault(_COMMIT, RESET, times=storage.RETRIES + 1))
        with pytest.raises(SinkError, match="cannot be opened"):
            _CREATE[name](f"s3://bucket/{name}", options)
        assert proxy.left() == 0
        _CREATE[name](f"s3://bucket/{name}", options)


@lost
def test_driver_goes_on_after_a_lost_answer_to_its_claim_and_its_ack(how: str) -> None:
    """No conflict with itself, which would stop the job, and one row for each ack."""
    with _store() as (proxy, options):
        acks = AckTable("s3://bucket/acks", options)
        with _each_lost(proxy, how):
            acks.fence_others()
        with _each_lost(proxy, how):
            assert acks.append(_ack(100)) == 1
        assert acks.append(_ack(200)) == 1
        table = DeltaTable("s3://bucket/acks", storage_options=options)
        assert table.version() == 3
        assert sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()) == [100, 200]


@lost
def test_writer_goes_on_after_a_lost_answer_to_its_claim_and_its_append(how: str) -> None:
    """The rows are in the log once, and the next batch follows."""
    with _store() as (proxy, options):
        table = create_shape_log("s3://bucket/log", options)
        claim, files = LogClaim(table), row_files(table, options)
        with _each_lost(proxy, how):
            claim.take()
        for batch_id, at in enumerate([100, 200]):
            rows = arrow([item((at, 0), "insert", "k", {"id": "k"}), commit(at)])
            written = list(files.write([rows]))
            with _each_lost(proxy, how):
                claim.append(written, claim.version_of(batch_id))
        found = table_rows(DeltaTable("s3://bucket/log", storage_options=options), ["tx_offset"])
        assert sorted(found["tx_offset"].to_pylist()) == [100, 100, 200, 200]


@lost
def test_dead_letters_are_stored_once_after_a_lost_answer(how: str) -> None:
    """They are not reported as not stored, and a rerun of the batch finds them."""
    with _store() as (proxy, options):
        letters = DeadLetterTable("s3://bucket/letters", options)
        row = {"batch_id": 7, "place": "p", "reason": "r", "value": "v", "written_at": _NOW}
        with _each_lost(proxy, how):
            letters.append([row], "query", 7)
        letters.append([row], "query", 7)
        table = DeltaTable("s3://bucket/letters", storage_options=options)
        assert table_rows(table, ["value"])["value"].to_pylist() == ["v"]


@lost
def test_registry_has_an_entry_once_after_a_lost_answer(how: str) -> None:
    """And the writer that has appended it is not taken for another one."""
    with _store() as (proxy, options):
        registry = RegistryTable("s3://bucket/shapes", options, create=True)
        registry.fence_others()
        entry = ShapeEntry(SOURCE, ShapeDefinition("users", ("public", "users")), 7, LogOffset(9, 0)).to_json()
        with _each_lost(proxy, how):
            assert registry.append([entry], _NOW) == 1
        table = DeltaTable("s3://bucket/shapes", storage_options=options)
        assert table_rows(table, ["id"])["id"].to_pylist() == ["users"]


@lost
def test_merge_is_known_to_be_done_after_a_lost_answer(how: str) -> None:
    """It is not taken for another process's."""
    with _store() as (proxy, options):
        acks = AckTable("s3://bucket/acks", options)
        acks.fence_others()
        for lsn in (100, 200):
            acks.append(_ack(lsn))
        table, commits = DeltaTable("s3://bucket/acks", storage_options=options), Commits()
        paths = pa.table(table.get_add_actions()).to_pylist()
        removed = [(path["path"], path["size_bytes"]) for path in paths]
        with _each_lost(proxy, how):
            assert commits.replace(table, removed, [])
        assert table_rows(table, ["ack_lsn"]).num_rows == 0


def test_commit_that_never_arrived_is_an_error() -> None:
    """Nothing is taken for durable because it was sent."""
    with _store() as (proxy, options):
        acks = AckTable("s3://bucket/acks", options)
        acks.fence_others()
        proxy.add(Fault(_COMMIT, RESET, times=storage.RETRIES + 1))
        with pytest.raises(SinkError, match="cannot be written"):
            acks.append(_ack(100))
        assert proxy.left() == 0
        assert acks.last_ack(SOURCE) is None


def test_other_drivers_commit_is_not_taken_for_ones_own() -> None:
    """Both would claim the same, and one of them must know that it has not."""
    with _store() as (_, options):
        AckTable("s3://bucket/acks", options)
        ours, others = (DeltaTable("s3://bucket/acks", storage_options=options) for _ in range(2))
        Commits().claim(others, "claim", 1)
        with pytest.raises(CommitFailedError):
            Commits().claim(ours, "claim", 1)
