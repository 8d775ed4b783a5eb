"""A server with one partitioned table, without PostgreSQL: its catalog, and the transactions that it sends."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from struct import pack
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer

ROOT: Final = 7
NAME: Final = ("public", "t")
FIRST_LSN: Final = 1000
_TABLE: Final = TableBinding(
    ROOT, NAME, ID_KEY, (ColumnBinding(1, "id", 25, -1, 5),), is_partitioned=True, published_by=("all tables",)
)


@dataclass
class Leaf:
    """A table with its rows; a partition of the root while it is ``attached``."""

    oid: int
    attached: int
    rows: set[str] = field(default_factory=set)
    is_attached: bool = True
    is_fresh: bool = True

    @property
    def binding(self) -> PartitionBinding:
        return PartitionBinding(
            self.oid,
            ("public", f"t_{self.oid}"),
            1,
            f"/{self.attached}",
            published_by=("all tables",),
            may_have_rows=not self.is_fresh,
        )


@dataclass(frozen=True)
class Sent:
    """A transaction as the server sends it."""

    lsn: int
    messages: tuple[bytes, ...]


class PartitionedServer(QuietServer):
    """Implements the queries of capture; what was detached is a table that can still be changed."""

    def __init__(self) -> None:
        self.leaves: dict[int, Leaf] = {}
        self.sent: list[Sent] = []
        self._lsn, self._xid, self._next_oid = FIRST_LSN, 800, 70

    @property
    def partitions(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves.values() if leaf.is_attached]

    def create(self) -> Leaf:
        self._commit()
        self._next_oid += 1
        leaf = self.leaves[self._next_oid] = Leaf(self._next_oid, self._xid)
        return leaf

    def drop(self, leaf: Leaf) -> None:
        self._commit()
        del self.leaves[leaf.oid]

    def detach(self, leaf: Leaf) -> None:
        self._commit()
        leaf.is_attached = False

    def attach(self, leaf: Leaf) -> None:
        self._commit()
        leaf.is_attached, leaf.is_fresh, leaf.attached = True, False, self._xid

    def insert(self, *rows: tuple[Leaf, str]) -> None:
        """Insert rows in one transaction."""
        messages = []
        for leaf, value in rows:
            leaf.rows.add(value)
            messages += [_relation(leaf.binding), _insert(leaf.oid, value.encode())]
        self._send(messages)

    def truncate(self, leaf: Leaf) -> None:
        leaf.rows.clear()
        self._send([_relation(leaf.binding), b"T" + pack(">IBI", 1, 0, leaf.oid)])

    def emit_transaction(self) -> None:
        self._send([])

    def _commit(self) -> None:
        self._lsn, self._xid = self._lsn + 100, self._xid + 1

    def _send(self, messages: list[bytes]) -> None:
        self._commit()
        begin = b"B" + pack(">QqI", self._lsn, 0, self._xid)
        commit = b"C\0" + pack(">QQq", self._lsn, self._lsn + 48, 0)
        self.sent.append(Sent(self._lsn, (begin, *messages, commit)))

    # What capture asks.

    def wal_end(self) -> int:
        return self._lsn + 48

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        table = self.bindings([ROOT])[ROOT]
        return [(replace(each, primary_key=("id",), keys_have_partitions=True), table) for each in definitions]

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        assert xid <= self._xid
        return frozenset([ROOT] if oid in {leaf.oid for leaf in self.partitions} else [])

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return dict.fromkeys(oids, replace(_TABLE, partitions=tuple(leaf.binding for leaf in self.partitions)))

    def empty_at(self, oid: int) -> int | None:
        return None if self.leaves[oid].rows else self.wal_end()

    def check_publication(self) -> str:
        return "1/1"

    def snapshot(self) -> MvccSnapshot:
        return MvccSnapshot(self._xid + 1, self._xid + 1)

    def next_xid(self) -> int:
        return self._xid + 1


def _relation(binding: PartitionBinding) -> bytes:
    name = f"public\0{binding.table[1]}\0d".encode()
    return b"R" + pack(">I", binding.oid) + name + pack(">h", 1) + b"\1id\0" + pack(">Ii", 25, -1)


def _insert(oid: int, value: bytes) -> bytes:
    return b"I" + pack(">I", oid) + b"N" + pack(">hcI", 1, b"t", len(value)) + value
