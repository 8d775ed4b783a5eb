"""``DelayedShapes``: decides which new shapes can be added now, and which are delayed.

A shape is delayed while its table is not in the publication and capture may not add it. It is also delayed while the
server or the connection may send only part of an open transaction's changes of its table
(:mod:`flushtracker.capture.shapes.incomplete_transactions`). Once it is added, all these transactions are visible to
every snapshot, and it starts after their commits.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from flushtracker.capture.shapes.incomplete_transactions import IncompleteTransactions, PublishedTables
from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.errors import listed
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding, dotted
from flushtracker.shapes.unpublished import Unpublished, is_unpublished
from flushtracker.status.capture_status import WaitingShapes

logger = logging.getLogger(__name__)

SLOW_S: Final = 10.0


@dataclass(slots=True)
class SlowWait:
    """A wait that starts with its first check; times are monotonic, in seconds.

    >>> wait = SlowWait()
    >>> [wait.is_due(now_s) for now_s in (100.0, 110.0, 110.5, 111.0)]
    [False, False, True, False]
    """

    since_s: float | None = None
    is_logged: bool = False

    def is_due(self, now_s: float) -> bool:
        """Whether it has lasted longer than :data:`SLOW_S`; true only once."""
        if self.since_s is None:
            self.since_s = now_s
        if self.is_logged or now_s - self.since_s <= SLOW_S:
            return False
        self.is_logged = True
        return True


_UNNOTICED: Final = Unpublished(
    "PostgreSQL may not send all of its changes, because a partition was published after the slot's position; capture "
    "connects again once the slot is past that",
    None,
)
_TAKEN_OUT: Final = Unpublished("it has just been taken out of the publication", None)
_MOST_LISTED: Final = 10
_MOST_WAITING: Final = 20
"""The status names this many tables with what they wait for; the others follow when these are done."""


class PublishableTables(PublishedTables, Protocol):
    """Tables that may be added to the publication; raises ``PostgresUnavailableError`` as :class:`PublishedTables`."""

    def bindings(self, oids: Iterable[int]) -> Mapping[int, TableBinding]:
        """The current tables with these OIDs, by OID; dropped ones are omitted."""

    def publish_tables(self, oids: Mapping[int, Collection[str]]) -> Mapping[int, Unpublished]:
        """Add tables to a managed publication; return the reasons for those that were not added, by OID.

        ``oids`` maps to the columns that shapes must know of old rows.
        """

    def can_publish(self, oids: Collection[int]) -> bool:
        """Whether one of the tables can be added to the publication now."""

    def retract_tables(self, used: Collection[int]) -> None:
        """Remove tables from a managed publication that none of the ``used`` ones needs."""


@dataclass(frozen=True, slots=True)
class NewShape:
    """A shape that can be added, with all of its ``tables``, its own first.

    ``starts_at_slot``: it gets everything from the start of a new source's slot.
    """

    definition: ShapeDefinition
    tables: tuple[TableBinding, ...]
    starts_at_slot: bool


@dataclass(slots=True)
class _Delay:
    """The reason for a delay: ``table`` is ``unpublished``, or the transactions ``xids`` have not ended.

    ``table`` is the first of its ``tables`` that it waits for.
    """

    definition: ShapeDefinition
    tables: tuple[TableBinding, ...]
    table: TableBinding
    unpublished: Unpublished | None
    xids: frozenset[int]
    slow: SlowWait


class DelayedShapes:
    """The shapes that are delayed; call :meth:`connect` first, and after each reconnect.

    ``refused`` has those that are refused; the catalog may allow some later.
    """

    def __init__(self, refused: RefusedShapes | None = None) -> None:
        self.refused = RefusedShapes() if refused is None else refused
        self._delays: dict[str, _Delay] = {}
        self._waiting: tuple[WaitingShapes, ...] = ()
        """The delayed shapes by table and what they wait for; first what somebody has to do."""

    @property
    def definitions(self) -> tuple[ShapeDefinition, ...]:
        """The delayed shapes, and those that the catalog does not allow."""
        return (*(delay.definition for delay in self._delays.values()), *self.refused.definitions)

    @property
    def table_oids(self) -> Set[int]:
        return {table.oid for delay in self._delays.values() for table in delay.tables}

    def connect(self, server: PublishableTables) -> None:
        self._server = server
        self._incomplete = IncompleteTransactions(server)

    def admit(
        self,
        resolved: Sequence[tuple[ShapeDefinition, TableBinding]],
        unpublished: Mapping[int, Unpublished],
        *,
        is_new_source: bool,
    ) -> list[NewShape]:
        """Return the new shapes that can be added now, and delay the others; this replaces the earlier delayed ones.

        ``unpublished`` has the reasons why tables could not be added to the publication, by OID.
        """
        oids = {binding.oid for _, binding in resolved if not is_unpublished(binding)}
        at_slot = self._incomplete.published_before_slot(oids) if is_new_source else frozenset()
        unnoticed = self._incomplete.unnoticed(oids - at_slot)
        unpublished = {**unpublished, **dict.fromkeys(unnoticed, _UNNOTICED)}
        oids -= unnoticed
        waits = self._incomplete.transactions(oids)
        new, delays = list[NewShape](), dict[str, _Delay]()
        for definition, tables in tables_by_shape(resolved):
            starts_at_slot = all(table.oid in at_slot for table in tables)
            # Without a snapshot, it would miss what the slot has before a later start.
            ignores_waits = starts_at_slot and definition.snapshot is False
            blocked = (each for each in tables if each.oid not in oids or (each.oid in waits and not ignores_waits))
            if (table := next(blocked, None)) is None:
                new.append(NewShape(definition, tables, starts_at_slot))
                continue
            oid, known = table.oid, self._delays.get(definition.id)
            slow = SlowWait() if known is None else known.slow
            missing = None if oid in oids else unpublished.get(oid, _TAKEN_OUT)
            delays[definition.id] = _Delay(definition, tables, table, missing, waits.get(oid, frozenset()), slow)
        before, self._delays = self._waiting, delays
        self._waiting = tuple(self._causes())
        _log_unpublished(set(self._waiting) - set(before))
        return new

    def is_any_ready(self) -> bool:
        """Whether a delayed shape is no longer waiting for anything; then pass the new shapes to :meth:`admit`
        again.
        """
        if not self._delays:
            return False
        snapshot = self._server.snapshot()
        published = [delay for delay in self._delays.values() if delay.unpublished is None]
        return any(all(map(snapshot.sees, delay.xids)) for delay in published) or self._is_any_published()

    def _is_any_published(self) -> bool:
        """Whether an unpublished table is published by now, can be, or has lost its name, perhaps to a new one."""
        names = {delay.table.oid: delay.table.table for delay in self._delays.values() if delay.unpublished is not None}
        if not names:
            return False
        now = self._server.bindings(names)
        is_same = {oid: table.table for oid, table in now.items() if is_unpublished(table)} == names
        return not is_same or self._server.can_publish(names.keys())

    @property
    def waiting(self) -> tuple[WaitingShapes, ...]:
        """The delayed shapes by what they wait for, with one for all tables past the first; for any thread."""
        found = self._waiting
        first, others = found[:_MOST_WAITING], found[_MOST_WAITING:]
        if not others:
            return first
        statements = sum(each.statement is not None for each in others)
        facts = ["each is listed when those before it have been added"]
        facts += [f"{statements:,} need a statement, which capture's log has"] if statements else []
        shape_ids = [shape_id for each in others for shape_id in each.shape_ids]
        count = sum(each.count for each in others)
        rest = f"({len(others):,} others)", tuple(shape_ids[:_MOST_LISTED]), count, "; ".join(facts), None
        return *first, WaitingShapes(*rest)

    def _causes(self) -> Iterable[WaitingShapes]:
        by_cause: dict[tuple[str, Unpublished], list[str]] = {}
        for shape_id, delay in sorted(self._delays.items()):
            cause = delay.unpublished or Unpublished(f"it waits for the end of {_named(delay.xids)}", None)
            by_cause.setdefault((dotted(delay.table.table), cause), []).append(shape_id)
        for (table, cause), ids in sorted(by_cause.items(), key=lambda item: item[0][1].statement is None):
            yield WaitingShapes(table, tuple(ids[:_MOST_LISTED]), len(ids), cause.reason, cause.statement)

    def log_slow(self, now_s: float) -> None:
        """Log once the shapes that have been delayed for long although published; ``now_s`` is monotonic."""
        slow: dict[str, list[str]] = {}
        for shape_id, delay in sorted(self._delays.items()):
            if delay.unpublished in (None, _UNNOTICED) and delay.slow.is_due(now_s):
                slow.setdefault(_slow_reason(delay), []).append(shape_id)
        for reason, shape_ids in slow.items():
            logger.warning("shapes not added yet shape_ids=%s reason=%s", listed(shape_ids), reason)


def tables_by_shape(
    resolved: Iterable[tuple[ShapeDefinition, TableBinding]],
) -> Iterator[tuple[ShapeDefinition, tuple[TableBinding, ...]]]:
    """Each definition with all of its tables, its own first; they are adjacent in ``resolved``."""
    for _, pairs in groupby(resolved, key=lambda pair: pair[0].id):
        found = tuple(pairs)
        yield found[0][0], tuple(table for _, table in found)


def _slow_reason(delay: _Delay) -> str:
    table = dotted(delay.table.table)
    if delay.unpublished is not None:
        return f"table {table}: {delay.unpublished.reason}"
    fact = f"the server may not send all changes of table {table} by {_named(delay.xids)}"
    return f"{fact}; they are added once it has ended"


def _named(xids: Collection[int]) -> str:
    names = listed([str(xid) for xid in sorted(xids)])
    return f"transaction {names}, which may have begun before the table was published"


def _log_unpublished(waiting: Iterable[WaitingShapes]) -> None:
    for each in sorted(waiting, key=lambda found: found.table):
        if each.statement:
            logger.warning(
                "shapes not added yet shape_ids=%s table=%s reason=%s statement=%s",
                *(listed(each.shape_ids), each.table, each.reason, each.statement),
            )
