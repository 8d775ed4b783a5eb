"""The collector without a server and a broker: which rows it reads, and when it cannot."""

from struct import pack

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.outbox import Outbox
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.errors import DecodeError
from flushtracker.kafka.kafka_config import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import TableName
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher

USERS, OTHER, PARTITION = 7, 8, 9
LSN = 1000


class FakeTables:
    """A catalog in which ``part`` is a partition of ``users``."""

    def wal_end(self) -> int:
        return LSN + 500

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        return definition, {("public", "users"): USERS, ("public", "other"): OTHER}[definition.table]

    def ancestors(self, oid: int, xid: int) -> frozenset[TableName]:
        assert xid in {742, 743}
        return frozenset([("public", "users")]) if oid == PARTITION else frozenset()


def begin(lsn: int, xid: int) -> bytes:
    return b"B" + pack(">QqI", lsn, 0, xid)


def commit(lsn: int) -> bytes:
    return b"C\0" + pack(">QQq", lsn, lsn + 48, 0)


def relation(oid: int, name: str) -> bytes:
    return b"R" + pack(">I", oid) + f"public\0{name}\0d".encode() + pack(">h", 1) + b"\1id\0" + pack(">Ii", 25, -1)


def insert(oid: int) -> bytes:
    return b"I" + pack(">I", oid) + b"N" + pack(">hcI", 1, b"t", 1) + b"1"


class Capture:
    """A collector with a shape on ``users``; ``published`` are the commits that went out."""

    def __init__(self) -> None:
        self.published: list[int] = []
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        self.publisher = FakePublisher()
        outbox = Outbox(self.publisher, topics, self.published.append)
        self.subscriptions = Subscriptions("7/1/s", (), outbox, FakeTables(), LogOffset.just_before(LSN))
        self.subscriptions.follow([ShapeDefinition("users", ("public", "users"))])
        self.subscriptions.source_begins()
        self.collector = Collector("7/1/s", LSN, self.subscriptions, outbox, FragmentConverter(2), None)

    def handle(self, *messages: bytes) -> None:
        for message in messages:
            self.collector.handle_message(LSN, message)


def cut_short(message: bytes) -> bytes:
    """A message that cannot be read to its end."""
    return message[:-1]


def test_a_row_of_a_table_without_shapes_is_not_even_read() -> None:
    """Whatever is in it, and however many there are; one of a table with shapes is."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), relation(USERS, "users"))
    capture.handle(*[cut_short(insert(OTHER))] * 5, insert(USERS), cut_short(insert(OTHER)), commit(LSN))
    capture.publisher.confirm()
    assert capture.published == [LSN]
    with pytest.raises(DecodeError, match=r"^at 0/3E8: pgoutput Insert: byte "):
        capture.handle(begin(LSN + 100, 743), cut_short(insert(USERS)))


def test_a_row_of_a_new_partition_is_read() -> None:
    """It is one of the root's shapes from its relation on."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(PARTITION, "part"))
    with pytest.raises(DecodeError, match=r"pgoutput Insert: byte "):
        capture.handle(cut_short(insert(PARTITION)))


def test_a_table_is_read_from_its_first_shape_on() -> None:
    """Also in mid-transaction, though the shape gets nothing of that one: it committed before the shape was there."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), cut_short(insert(OTHER)))
    shapes = [ShapeDefinition("users", ("public", "users")), ShapeDefinition("other", ("public", "other"))]
    capture.subscriptions.follow(shapes)
    with pytest.raises(DecodeError, match=r"pgoutput Insert: byte "):
        capture.handle(cut_short(insert(OTHER)))


def test_a_relation_outside_a_transaction_is_refused() -> None:
    """Nobody could say whose changes it is about."""
    with pytest.raises(DecodeError, match=r"^a relation came before any transaction; connect again"):
        Capture().handle(relation(USERS, "users"))
