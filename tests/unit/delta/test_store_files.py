"""Requests to a store that does not answer, during which the other threads of a program must run."""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Transaction, write_deltalake
from pyarrow.fs import FileSelector

from flushtracker.delta import new_file
from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import read_blocks, write_blocks, write_file
from flushtracker.delta.storage import StoreFiles, commit_notes, committer
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.faulty_proxy import HELD, RESET, Fault, FaultyProxy, faulty_proxy
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
def options(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(new_file, "PAUSE_S", 0.01)
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
        ("list-type", _list, 1),
        ("POST .*delete", lambda files: files.delete_file("none"), None),
    ],
    ids=["size", "list", "deletion"],
)
def test_threads_run_while_a_store_does_not_answer(
    proxy: FaultyProxy,
    options: dict[str, str],
    tmp_path: Path,
    request_: str,
    use: Callable[[StoreFiles], object],
    expected: object,
) -> None:
    """deltalake held the GIL, so that a job answered no status request and no stop signal for minutes.

    Here the other thread is the one that has the store answer, and the request does not give up before that.
    """
    table = f"{_TABLE}-{tmp_path.name}"
    write_deltalake(table, pa.table({"a": [1]}), mode="overwrite", storage_options=options)
    DeltaTable(table, storage_options=options).vacuum(dry_run=True)
    files = StoreFiles(table, options)
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
    proxy: FaultyProxy, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that begins a file held the GIL for three minutes, in the middle of each append of acks.

    It is given up, and another one waits for the store until it answers.
    """
    monkeypatch.setattr(new_file, "BEGIN_S", 1)
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


_LARGE: Final = pa.table({"a": [random.Random(1).randbytes(1 << 20).hex() for _ in range(9)]})  # noqa: S311


def _sent(files: StoreFiles) -> bool:
    write_file(files, "large.parquet", _LARGE)
    return len(pa.concat_tables(read_blocks(files, "large.parquet", _LARGE.schema))) == len(_LARGE)


def test_threads_run_while_a_large_file_is_not_begun(
    proxy: FaultyProxy, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only small files were given up: for what upkeep merges, no thread ran for three minutes, however often the store
    answered other requests.
    """
    monkeypatch.setattr(new_file, "BEGIN_S", 1)
    files, released = StoreFiles(_TABLE, options), threading.Event()
    proxy.add(Fault("POST .*uploads", HELD, times=100))
    other = threading.Thread(target=_release, args=(proxy, released, 3))
    other.start()
    assert _sent(files)
    other.join(120)
    assert released.is_set()


def test_a_file_whose_parts_take_long_is_given_more_time(
    proxy: FaultyProxy, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a slow network would let no large file through."""
    monkeypatch.setattr(new_file, "BEGIN_S", 1)
    proxy.add(Fault("PUT .*partNumber", delay_s=1.2, times=100))
    assert _sent(StoreFiles(_TABLE, options))
    assert proxy.left() > 0


@pytest.mark.parametrize("request_", ["POST .*uploads", "PUT .*partNumber", "POST .*uploadId"])
@pytest.mark.parametrize("status", [RESET, 500, 503])
def test_each_request_of_a_file_is_tried_again(
    proxy: FaultyProxy, options: dict[str, str], request_: str, status: int
) -> None:
    proxy.add(Fault(request_, status, times=2))
    assert _sent(StoreFiles(_TABLE, options))
    assert proxy.left() == 0


def test_a_file_that_a_store_refuses_is_not_tried_again(proxy: FaultyProxy, options: dict[str, str]) -> None:
    """A program with missing rights ended after three minutes instead of at once."""
    proxy.add(Fault("POST .*uploads", 403, times=100))
    with pytest.raises(OSError, match="403"):
        _sent(StoreFiles(_TABLE, options))
    assert proxy.left() == 99


def test_nothing_is_sent_of_a_file_whose_rows_cannot_be_made(proxy: FaultyProxy, options: dict[str, str]) -> None:
    def tables() -> Iterator[pa.Table]:
        yield _LARGE
        raise ValueError("no more rows")

    proxy.requests()
    with pytest.raises(ValueError, match="no more rows"):
        write_blocks(StoreFiles(_TABLE, options), "half.parquet", tables(), _LARGE.schema)
    assert proxy.requests() == []


@pytest.mark.parametrize("buffering", [0, 1 << 20])
def test_a_disk_of_temporary_files_that_is_full_is_named(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, buffering: int
) -> None:
    """It fails an append; but a compaction, which only saves time, does not end the job."""
    acks = AckTable(f"s3://bucket/full{buffering}", options)
    acks.fence_others()
    for lsn in range(3):
        acks.append(AckRow("source", lsn, 10 + lsn, None, 0, None, None, _NOW))
    full = r"temporary files.* cannot be used: \[Errno 28\] No space left on device$"
    with monkeypatch.context() as patch:
        patch.setattr(new_file, "temporary_file", partial(open, "/dev/full", "w+b", buffering=buffering))
        with pytest.raises(SinkError, match=rf"^ack table s3://bucket/full{buffering} cannot be written: {full}"):
            acks.append(AckRow("source", 3, 13, None, 0, None, None, _NOW))
        acks._owned.compact()
    assert re.search(f"ack table not compacted uri=s3://bucket/full{buffering} reason={full}", caplog.text, re.M)
    assert acks.append(AckRow("source", 3, 13, None, 0, None, None, _NOW)) == 1


def test_threads_run_while_a_store_does_not_answer_for_notes_of_commits(
    proxy: FaultyProxy, options: dict[str, str]
) -> None:
    """deltalake's history holds the GIL: so did a commit whose answer was lost, and a program that was fenced."""
    table = create_shape_log("s3://bucket/fenced", options)
    for number in range(2):
        Commits().commit(table, [], [Transaction("app", number)], note={"app": f"process {number}"})
    released = threading.Event()
    proxy.add(Fault("HEAD .*json|GET .*json", HELD, times=100))
    other = threading.Thread(target=_release, args=(proxy, released))
    other.start()
    assert [notes.get("app") for notes in commit_notes(table, 0)] == ["process 1", "process 0"]
    other.join(120)
    assert released.is_set()
    assert committer(table, "app") == " (process 1)"
