"""``EventRouter``: gives each fragment of the WAL to the shapes that it concerns.

It holds the shapes by table, and the open transaction: who took part in it so far. What it guarantees:

- A shape takes part in a transaction from its first item on, and ``has_begin`` is true on that fragment alone. A change
  that gives no item makes nobody take part.
- The commit goes to every shape that took part, and to no other, also where its own fragment has nothing for the shape.
- A shape added gets only transactions whose commit LSN is above all that was routed before: not the open one, and no
  older one that is sent again.
- A shape removed gets nothing more, also in mid-transaction. The commit still names it, marked ``removed``, because the
  tracker has to close the transaction that it registered.
- What a shape gets depends on the transaction alone: not on how it is cut into fragments, nor on whether it came
  before.
- Fragments follow each other: a transaction's in order and without another's between them. What does not is an error,
  never a guess. The order *of transactions* is free, because a server sends old ones again.

The cost of a change is a look-up by table and one by the row's values, and a test for each shape that they find
(:mod:`~flushtracker.shapes.shape_index`).
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.open_transaction import OpenTransaction, followed_transaction
from flushtracker.shapes.shape import BoundShape, Shape, empty_partitions
from flushtracker.shapes.shape_index import ShapeIndex
from flushtracker.wal.changes import Change, Commit, LogItem, Relation, TableName, TransactionFragment
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class RoutedFragment:
    """One fragment's part for one shape.

    ``change_count`` counts the table's changes, so a split update is one, with two items. ``removed``: the shape is
    gone and took part before it went; the fragment's metadata names it, but nothing is to be sent to it.
    """

    shape_id: str
    xid: int
    lsn: int
    last_log_offset: LogOffset
    has_begin: bool
    commit: Commit | None
    items: tuple[LogItem, ...] = ()
    change_count: int = 0
    removed: bool = False

    @property
    def last_offset(self) -> LogOffset | None:
        """The offset of the last item, ``None`` without any; past ``last_log_offset`` where the last update splits."""
        return self.items[-1].offset if self.items else None


@dataclass(frozen=True, slots=True)
class _Registered:
    """A shape that is routed to, and the commit LSN at and below which it gets nothing."""

    shape: Shape
    starts_after: int


@dataclass(slots=True)
class _Taken:
    """What one fragment has for one shape."""

    items: list[LogItem] = field(default_factory=list)
    change_count: int = 0


class EventRouter:
    """The shapes, and what the open transaction has brought them.

    One router serves one stream of fragments for as long as the process lives: it remembers what it routed and which
    ids were used. After a reconnect call :meth:`forget_open_transaction`.

    Raises:
        ShapeError: a definition is refused, or two have the same id.
    """

    _index_type = ShapeIndex

    def __init__(self, definitions: Iterable[ShapeDefinition] = ()) -> None:
        self._registered: dict[str, _Registered] = {}
        self._by_table: dict[TableName, ShapeIndex] = {}
        self._removed: set[str] = set()
        self._open: OpenTransaction | None = None
        self._routed_up_to: LogOffset | None = None
        for definition in definitions:
            self.add_shape(definition)

    @property
    def shape_ids(self) -> frozenset[str]:
        """The shapes that are routed to."""
        return frozenset(self._registered)

    def has_shapes_on(self, table: TableName) -> bool:
        """Whether a change of ``table`` may concern any shape."""
        return table in self._by_table

    def add_shape(self, definition: ShapeDefinition, starts_after: int = -1) -> None:
        """Route to one more shape, from the first transaction on that is above everything routed so far.

        With ``starts_after`` also above that commit LSN: what earlier processes have routed, this one does not know.

        Raises:
            ShapeError: its ``where`` is refused, or its id is or was in use.
        """
        shape_id = definition.id
        if shape_id in self._registered or shape_id in self._removed:
            state = "removed" if shape_id in self._removed else "in use"
            raise ShapeError(f"shape {shape_id!r} cannot be added, its id is {state}; an id is never used twice")
        if self._routed_up_to is not None:
            starts_after = max(starts_after, self._routed_up_to.tx_offset)
        self._register(_Registered(Shape(definition), starts_after))

    def set_partitions(self, shape_id: str, partitions: Iterable[TableName]) -> None:
        """From now on the shape's table has these partitions; what was routed before stays as it was.

        Raises:
            ShapeError: no such shape is routed to.
        """
        registered = self._unregister(shape_id, "given partitions")
        definition = replace(registered.shape.definition, partitions=tuple(partitions))
        self._register(_Registered(Shape(definition), registered.starts_after))

    def remove_shape(self, shape_id: str) -> LogOffset | None:
        """Route nothing more to the shape, and return the offset for its ``removed`` event.

        Nothing was or will be routed to the shape after that offset, which may lie inside the open transaction.
        ``None``: this router has not routed anything. It does not know what an earlier process routed: after a
        restart the event needs the greater of this offset and one that is past all of that.

        Raises:
            ShapeError: no such shape is routed to.
        """
        self._unregister(shape_id, "removed")
        self._removed.add(shape_id)
        if self._open is not None and shape_id in self._open.shapes:
            self._open.removed.add(shape_id)
        return self._routed_up_to

    def _register(self, registered: _Registered) -> None:
        shape_id = registered.shape.definition.id
        self._registered[shape_id] = registered
        for table in registered.shape.tables:
            if table not in self._by_table:
                self._by_table[table] = self._index_type()
            self._by_table[table].add(registered.shape, registered.starts_after)

    def _unregister(self, shape_id: str, wish: str) -> _Registered:
        registered = self._registered.pop(shape_id, None)
        if registered is None:
            state = "was removed before" if shape_id in self._removed else "was never added"
            raise ShapeError(f"shape {shape_id!r} cannot be {wish}, it {state}")
        for table in registered.shape.tables:
            self._by_table[table].remove(shape_id)
            if not self._by_table[table]:
                del self._by_table[table]
        return registered

    def forget_open_transaction(self) -> None:
        """The connection was lost: the open transaction will be sent again from its start, perhaps after older ones."""
        self._open = None

    def route(self, fragment: TransactionFragment) -> tuple[RoutedFragment, ...]:
        """What each shape gets of ``fragment``, in the order of shape ids; nobody gets a keepalive.

        When it raises, the router is as it was before. An error about one shape alone has its ``shape_id``: once the
        shape is removed, the same fragment can be routed to the others.

        Raises:
            GapError: the fragment does not follow the one before.
            ShapeError: a shape cannot be kept on a table that has just become known, or was altered.
            DecodeError: a row lacks a column without which it cannot be routed.
        """
        transaction = followed_transaction(self._open, fragment, self._routed_up_to)
        if transaction is None:
            self._advance(fragment.last_log_offset)
            return ()
        taken, empty = self._take(transaction, fragment)
        everyone = taken.keys() if fragment.commit is None else transaction.shapes | taken.keys()
        nothing = _Taken()
        parts = [(shape_id, taken.get(shape_id, nothing)) for shape_id in sorted(everyone)]
        routed = tuple(
            RoutedFragment(
                shape_id,
                transaction.xid,
                fragment.lsn,
                fragment.last_log_offset,
                has_begin=shape_id not in transaction.shapes,
                commit=fragment.commit,
                items=tuple(part.items),
                change_count=part.change_count,
                removed=shape_id in transaction.removed,
            )
            for shape_id, part in parts
        )
        transaction.shapes.update(taken)
        transaction.empty.update(empty)
        transaction.last_log_offset = fragment.last_log_offset
        self._open = transaction if fragment.commit is None else None
        self._advance(fragment.last_log_offset)
        # The second item of a split update lies past the fragment's last offset.
        for part in routed:
            if part.items and part.items[-1].offset.op_offset > fragment.last_log_offset.op_offset:
                self._advance(part.items[-1].offset)
        return routed

    def _take(
        self, transaction: OpenTransaction, fragment: TransactionFragment
    ) -> tuple[dict[str, _Taken], Mapping[str, frozenset[TableName]]]:
        """What the fragment has for each shape, and which partitions are empty now that were not; changes nothing."""
        taken: dict[str, _Taken] = {}
        empty = ChainMap({}, transaction.empty)
        relation: Relation | None = None
        index: ShapeIndex | None = None
        for change in fragment.changes:
            if change.relation is not relation:
                relation = change.relation
                index = self._by_table.get(relation.table)
            if index is None:
                continue
            for candidate in index.candidates(change, fragment.lsn):
                try:
                    items = _items(candidate.bound_to(change.relation), change, empty)
                except (ShapeError, DecodeError) as error:
                    error.shape_id = candidate.shape_id
                    raise
                if items:
                    part = taken.setdefault(candidate.shape_id, _Taken())
                    part.items.extend(items)
                    part.change_count += 1
        return taken, empty.maps[0]

    def _advance(self, offset: LogOffset) -> None:
        self._routed_up_to = offset if self._routed_up_to is None else max(self._routed_up_to, offset)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the index and the shapes, or the open transaction, disagree; for tests."""
        indexed = {(table, shape_id) for table, index in self._by_table.items() for shape_id in index.shape_ids}
        expected = {(table, key) for key, registered in self._registered.items() for table in registered.shape.tables}
        if indexed != expected or not all(self._by_table.values()):
            raise AssertionError(f"the indexes have {sorted(indexed)}, expected {sorted(expected)}")
        for index in self._by_table.values():
            index.check_invariants()
        if self._removed & self._registered.keys():
            raise AssertionError(f"{sorted(self._removed & self._registered.keys())} are both removed and routed to")
        current = self._open
        if current is not None and current.removed != current.shapes & self._removed:
            raise AssertionError(f"{sorted(current.removed)} are marked removed in the open transaction")


def _items(bound: BoundShape, change: Change, empty: MutableMapping[str, frozenset[TableName]]) -> tuple[LogItem, ...]:
    """The shape's items of ``change``; ``empty`` is brought up to date for the shape."""
    definition = bound.definition
    own = bound.filter(change)
    if own is None:
        return ()
    if definition.partitions:
        empty[definition.id], has_effect = empty_partitions(definition, empty.get(definition.id, frozenset()), change)
        if not has_effect:
            return ()
    return log_items(bound, own)
