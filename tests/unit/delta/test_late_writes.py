"""A request to an object store arrives late: its client has given up, and others have written meanwhile, or not yet.

So it is with a timeout while the request is on its way, in a queue of the network or of the store's own.
``tests/integration/test_s3_late_writes.py`` has requests that arrive after the upkeep of a table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final

import pytest
from deltalake import DeltaTable

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
from tests.support.faulty_proxy import HELD, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import running_store, store_options
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_COMMIT: Final = r"PUT .*/_delta_log/\d{20}\.json"
_TRIES: Final = storage.RETRIES + 1
_REFUSED: Final = [412] * _TRIES
_ACCEPTED: Final = [200, *_REFUSED[1:]]
"""Once."""
_ACKS: Final = "s3://bucket/acks"


class _Program(ABC):
    """A program that has just started, and writes to its table; numbers stand for what it writes."""

    name: str

    @abstractmethod
    def __init__(self, options: dict[str, str]) -> None:
        """Open the table."""

    def start(self) -> None:  # noqa: B027  one of the tables has no claims
        """Take the table from a program before, if there is a claim to it."""

    @abstractmethod
    def write(self, number: int) -> None:
        """Write what a program does that was killed while it wrote this, unless the table has it."""

    @staticmethod
    @abstractmethod
    def numbers(options: dict[str, str]) -> list[int]:
        """What the table has, in order."""


class _Acks(_Program):
    def __init__(self, options: dict[str, str]) -> None:
        self._table = AckTable(_ACKS, options)

    def start(self) -> None:
        self._table.fence_others()

    def write(self, number: int) -> None:
        self._table.append(_ack(number))

    @staticmethod
    def numbers(options: dict[str, str]) -> list[int]:
        return _column(_ACKS, options, "ack_lsn")


class _Log(_Program):
    def __init__(self, options: dict[str, str]) -> None:
        self._table = create_shape_log("s3://bucket/log", options)
        self._claim, self._files = LogClaim(self._table), row_files(self._table, options)

    def start(self) -> None:
        self._claim.take()

    def write(self, number: int) -> None:
        # A writer that does not know the log reads where it ends.
        if number not in _column(self._table.table_uri, self._files.options, "tx_offset"):
            rows = arrow([item((number, 0), "insert", "k", {"id": "k"}), commit(number)])
            self._claim.append(list(self._files.write([rows])), self._claim.version_of(number))

    @staticmethod
    def numbers(options: dict[str, str]) -> list[int]:
        return _column("s3://bucket/log", options, "tx_offset", "operation = 'commit'")


class _Registry(_Program):
    def __init__(self, options: dict[str, str]) -> None:
        self._table = RegistryTable("s3://bucket/shapes", options, create=True)

    def start(self) -> None:
        self._table.fence_others()

    def write(self, number: int) -> None:
        definition = ShapeDefinition(f"s{number}", ("public", "users"))
        self._table.append([ShapeEntry(SOURCE, definition, 7, LogOffset(9, 0)).to_json()], _NOW)

    @staticmethod
    def numbers(options: dict[str, str]) -> list[int]:
        return sorted(int(key[2][1:]) for key in RegistryTable("s3://bucket/shapes", options).written())


class _Letters(_Program):
    def __init__(self, options: dict[str, str]) -> None:
        self._table = DeadLetterTable("s3://bucket/letters", options)

    def write(self, number: int) -> None:
        row = {"batch_id": number, "place": "p", "reason": "r", "value": "v", "written_at": _NOW}
        self._table.append([row], "query", number)

    @staticmethod
    def numbers(options: dict[str, str]) -> list[int]:
        return _column("s3://bucket/letters", options, "batch_id")


_PROGRAMS: Final[Mapping[str, type[_Program]]] = {
    "acks": _Acks,
    "log": _Log,
    "registry": _Registry,
    "dead letters": _Letters,
}
each_program = pytest.mark.parametrize("name", in_turn([*_PROGRAMS], 2))


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


def _column(uri: str, options: Any, name: str, condition: str = "TRUE") -> list[int]:
    table = DeltaTable(uri, storage_options=dict(options))
    values: list[int] = table_rows(table, [name], condition)[name].to_pylist()
    return sorted(values)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries."""
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)


@contextmanager
def _store() -> Iterator[tuple[FaultyProxy, dict[str, str]]]:
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        yield proxy, store_options(proxy.port)


@contextmanager
def _given_up(program: type[_Program]) -> Iterator[tuple[FaultyProxy, dict[str, str]]]:
    """A program has written 1, and given up while all tries of its commit of 2 are on their way."""
    with _store() as (proxy, options):
        first = program(options | {"timeout": "1s"})
        first.start()
        first.write(1)
        proxy.add(Fault(_COMMIT, HELD, times=_TRIES))
        with pytest.raises(SinkError, match="timed out"):
            first.write(2)
        assert proxy.held() == _TRIES
        yield proxy, options


def _answers(proxy: FaultyProxy) -> list[int]:
    """What the store answers to all tries of the commit, which arrive now."""
    return sorted(status for _, status in proxy.release())


@each_program
def test_commit_that_arrives_after_others_is_refused(name: str) -> None:
    """It replaces nothing, and the program that has given up had not said that it is durable."""
    program = _PROGRAMS[name]
    with _given_up(program) as (proxy, options):
        second = program(options)
        second.start()
        second.write(3)
        assert _answers(proxy) == _REFUSED
        second.write(4)
        assert program.numbers(options) == [1, 3, 4]


@each_program
def test_commit_that_arrives_before_the_next_start_is_found_then(name: str) -> None:
    """The next program writes the same again, as it does after a crash, and it is there once."""
    program = _PROGRAMS[name]
    with _given_up(program) as (proxy, options):
        assert _answers(proxy) == _ACCEPTED
        second = program(options)
        second.start()
        second.write(2)
        second.write(3)
        assert program.numbers(options) == [1, 2, 3]


@each_program
def test_commit_that_arrives_between_look_and_commit_of_the_next_is_there_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next program's commit conflicts with it, or has the same; after an error it is started once more."""
    program = _PROGRAMS[name]
    with _given_up(program) as (proxy, options):
        handle = Commits.commit

        def commit_late(commits: Commits, *arguments: Any, **named: Any) -> None:
            monkeypatch.undo()
            assert _answers(proxy) == _ACCEPTED
            handle(commits, *arguments, **named)

        monkeypatch.setattr(Commits, "commit", commit_late)
        for start in range(2):
            following = program(options)
            try:
                following.start()
                following.write(2)
                break
            except SinkError:
                assert start == 0
        following.write(3)
        assert program.numbers(options) == [1, 2, 3]
