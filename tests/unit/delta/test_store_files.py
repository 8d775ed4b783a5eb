"""Requests to a store that does not answer, during which the other threads of a program must run."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import FileSelector

from flushtracker.delta import owned_table
from flushtracker.delta.storage import StoreFiles
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.faulty_proxy import HELD, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import running_store, store_options
from tests.support.shape_log_rows import append, inserts

_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_TABLE: Final = "s3://bucket/table"
_NO_RETRIES: Final = {"timeout": "20s", "max_retries": "0"}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    with running_store() as (port, _), faulty_proxy(port) as found:
        yield found


@pytest.fixture
def options(proxy: FaultyProxy) -> dict[str, str]:
    return store_options(proxy.port) | _NO_RETRIES


def _release(proxy: FaultyProxy, released: threading.Event, requests: int = 1) -> None:
    """Have the store answer again, once it has left so many requests unanswered."""
    while proxy.held() < requests:
        time.sleep(0.01)
    proxy.left()
    proxy.release()
    released.set()


def _list(files: StoreFiles) -> int:
    return len(files.get_file_info_selector(FileSelector("_delta_log", recursive=False)))


@pytest.mark.parametrize(
    ("request_", "use", "expected"),
    [
        ("HEAD ", lambda files: len(files.open_input_file("_delta_log/00000000000000000000.json").read()) > 0, True),
        ("list-type", _list, 2),
        ("POST .*delete", lambda files: files.delete_file("none"), None),
    ],
    ids=["size", "list", "deletion"],
)
def test_threads_run_while_a_store_does_not_answer(
    proxy: FaultyProxy, options: dict[str, str], request_: str, use: Callable[[StoreFiles], object], expected: object
) -> None:
    """deltalake held the GIL, so that a job answered no status request and no stop signal for minutes.

    Here the other thread is the one that has the store answer, and the request does not give up before that.
    """
    write_deltalake(_TABLE, pa.table({"a": [1]}), mode="overwrite", storage_options=options)
    DeltaTable(_TABLE, storage_options=options).vacuum(dry_run=True)
    files = StoreFiles(_TABLE, options)
    released = threading.Event()
    proxy.add(Fault(request_, HELD, times=100))
    other = threading.Thread(target=_release, args=(proxy, released))
    other.start()
    found = use(files)
    other.join(120)
    assert released.is_set()
    assert found == expected


def test_files_whose_size_is_known_are_not_asked_for(proxy: FaultyProxy, options: dict[str, str]) -> None:
    """Each cost a request, during which no other thread ran: in compaction, upkeep and the list of sources."""
    acks = AckTable("s3://bucket/acks", options)
    acks.fence_others()
    for lsn in range(3):
        acks.append(AckRow("source", lsn, 10 + lsn, None, 0, None, None, _NOW))
    log = create_shape_log("s3://bucket/log", options)
    append(log, inserts(10, "a"))
    proxy.requests()
    assert acks.last_acks() == {"source": 12}
    acks._owned.compact()
    files = LogFiles(log, options)
    (file,) = files.current()
    assert len(files.read(file.path)) == 2
    assert [each for each in proxy.requests() if each.startswith("HEAD ")] == []


def test_threads_run_while_a_store_does_not_answer_an_append(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that begins a file held the GIL for three minutes, in the middle of each append of acks.

    It is given up, and another one waits for the store until it answers.
    """
    monkeypatch.setattr(owned_table, "_SMALL_TIMEOUT", "1s")
    options = store_options(proxy.port) | {"timeout": "20s", "max_retries": "0"}
    acks = AckTable("s3://bucket/appended", options)
    acks.fence_others()
    released = threading.Event()
    proxy.add(Fault("POST .*uploads|HEAD ", HELD, times=100))
    other = threading.Thread(target=_release, args=(proxy, released, 2))
    other.start()
    assert acks.append(AckRow("source", 1, 10, None, 0, None, None, _NOW)) == 1
    other.join(120)
    assert released.is_set()
    assert acks.last_acks() == {"source": 10}
