"""What shapes, however many, and what is wrong with one of them, can do to the looks of ``serve`` at the tables."""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flushtracker.config.write_config import LogConfig
from flushtracker.delta.storage import query_rows
from flushtracker.errors import SinkError
from flushtracker.events.registry import Registry
from flushtracker.serve import poller as poller_module
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.poller import Poller
from flushtracker.serve.reads import LogReads
from flushtracker.serve.stalled_files import StalledFiles
from flushtracker.shape_log.table import shape_ends
from flushtracker.shape_log.table.files import LogFile
from tests.support.sample_registry import register, shape_entry, table_entry, users_log
from tests.support.serve_client import serving
from tests.support.shape_log_rows import SOURCE, append, append_transactions, commit, item

_SHAPES = [f"s{number:03}" for number in range(200)]


@pytest.fixture
def log(tmp_path: Path) -> str:
    found = users_log(tmp_path)
    register(found, table_entry(), *map(shape_entry, _SHAPES))
    append_transactions(found, _SHAPES, 0)
    return found


async def _watched(poller: Poller) -> None:
    """Let ``poller`` look for all shapes."""
    for shape_id in _SHAPES:
        poller.drop(shape_id, poller.changed(shape_id))


async def test_many_shapes_are_found_by_few_queries(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts anew, or whose log was folded, finds the shapes of all of its clients."""
    reads = LogReads(LogConfig(log, f"{log}_shapes"), None)
    poller, tables = Poller(reads.open, 0.5, now_s=lambda: 0.0), reads.open()
    await _watched(poller)
    queries = list[str]()

    def counted(table: DeltaTable, query: str) -> pa.Table:
        queries.append(query)
        return query_rows(table, query)

    monkeypatch.setattr(shape_ends, "query_rows", counted)
    view = poller._poll(tables, 0.0)
    assert {shape_id: found.tx for shape_id, found in view.shapes.items()} == dict.fromkeys(_SHAPES, 1000)  # type: ignore[union-attr]
    assert len(queries) == len(_SHAPES) / 20


async def test_look_that_takes_long_goes_on_with_the_next_one(log: str) -> None:
    """Each finds some shapes, also while the log gets longer, so no shape waits for all others."""
    reads, now_s = LogReads(LogConfig(log, f"{log}_shapes"), None), count()
    poller, tables = Poller(reads.open, 0.5, now_s=lambda: float(next(now_s))), reads.open()
    await _watched(poller)
    found = set[str]()
    for number in range(1, 4):
        append_transactions(log, _SHAPES, number)
        view = poller.view = poller._poll(tables, float(next(now_s)))
        assert 0 < len(view.shapes) <= 100
        assert found.isdisjoint(view.shapes) or found == set(_SHAPES)
        found |= view.shapes.keys()
    assert found == set(_SHAPES)


async def test_lost_file_of_a_shape_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its clients get a 503, and those of other shapes what there is, however long it lasts."""
    log = users_log(tmp_path)
    register(log, shape_entry("lost"))
    append(log, [item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    before = set(Path(log).glob("*.parquet"))
    append(log, [item((20, 0), "insert", "a", {"id": "1"}, shape_id="lost"), commit(20, shape_id="lost")])
    async with serving(log) as server:
        assert (await server.get({"shape": "users", "offset": "-1"})).status == 200
        (file,) = set(Path(log).glob("*.parquet")) - before
        content = file.read_bytes()
        file.unlink()
        for _ in range(3):
            assert (await server.get({"shape": "lost", "offset": "-1"})).status == 503
            assert server.served.parts.poller.problem is None
            assert (await server.get({"shape": "users", "offset": "-1"})).status == 200
        file.write_bytes(content)
        while (await server.get({"shape": "lost", "offset": "-1"})).status != 200:
            await asyncio.sleep(0.05)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings
    assert all(text.startswith("shape cannot be looked at reason=shape log ") for text in warnings)


async def test_look_that_takes_long_goes_on_while_all_files_answer(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left behind with its tables, and the next one, which knew nothing, would have taken as long."""
    monkeypatch.setattr(poller_module, "LOOK_S", 0.01)
    ask_for, look_up, asked = OpenTables.ask_for, OpenTables.look_up, threading.Semaphore(0)

    def answered(tables: OpenTables, file: LogFile) -> None:
        ask_for(tables, file)
        asked.release()

    def slow(tables: OpenTables, shape_ids: Collection[str]) -> None:
        for _ in range(2 * len(tables.files())):
            asked.acquire()
        look_up(tables, shape_ids)

    monkeypatch.setattr(OpenTables, "ask_for", answered)
    monkeypatch.setattr(OpenTables, "look_up", slow)
    reads = LogReads(LogConfig(log, f"{log}_shapes"), None)
    poller, tables = Poller(reads.open, 0.5, now_s=lambda: 0.0), reads.open()
    poller.drop(_SHAPES[0], poller.changed(_SHAPES[0]))
    assert poller._poll(tables, 0.0).shapes.keys() == {_SHAPES[0]}
    assert poller._is_usable


async def test_nothing_is_kept_of_stalled_files_that_answer_or_are_gone(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may stall for each file that comes, and upkeep merges them into others."""
    stalled = set[str]()

    def ask_for(_: OpenTables, file: LogFile) -> None:
        if file.path in stalled:
            raise SinkError("no answer")

    monkeypatch.setattr(OpenTables, "ask_for", ask_for)
    for number in range(3):
        append_transactions(log, [f"other{number}"], number)
    tables, files = LogReads(LogConfig(log, f"{log}_shapes"), None).open(), StalledFiles()
    stalled |= {file.path for file in tables.files()}
    assert files.find(tables, [_SHAPES[0], "other0"], 0.0)
    assert (len(files), files.may_have("other0"), files.may_have("other2")) == (2, True, False)
    assert not files.find(tables, ["other0"], 0.0)
    stalled.clear()
    for now_s in (5.0, 10.0, 20.0):
        files.ask_again(tables, now_s)
    assert len(files) == 0
    stalled |= {file.path for file in tables.files()}
    assert files.find(tables, _SHAPES, 30.0)
    monkeypatch.setattr(OpenTables, "files", lambda _: [])
    files.ask_again(tables, 40.0)
    assert len(files) == 0


class _Unread(dict[Any, Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all entries are read")


def test_sources_of_a_shape_are_found_without_its_neighbours() -> None:
    """A look at thousands of shapes does not read all entries for each."""
    registry = Registry.of([shape_entry("a"), shape_entry("a", source="8/1/s"), shape_entry("b"), table_entry()])
    unread: Mapping[Any, Any] = _Unread(registry.entries)
    registry = Registry(unread, registry.partitions, registry.sources)
    assert registry.sources_of("a") == {SOURCE, "8/1/s"}
    assert registry.sources_of("c") == set()
