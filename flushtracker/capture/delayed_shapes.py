"""``DelayedShapes``: decides which new shapes can be added now, and which are delayed.

A shape is delayed while a transaction is open of which the server may not send all changes of its table
(:mod:`flushtracker.capture.partly_sent`). Once it is added, all of these are visible to every snapshot, and it starts
after their commits.
"""

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass

from flushtracker.capture.partly_sent import PartlySent, PublishedTables
from flushtracker.capture.slow_wait import SlowWait
from flushtracker.errors import listed
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewShape:
    """A shape that can be added; ``starts_at_slot``: it gets everything that the slot of a new source has."""

    definition: ShapeDefinition
    table: TableBinding
    starts_at_slot: bool


@dataclass(slots=True)
class _Delay:
    """``xids``: what a shape waits for."""

    table: str
    xids: frozenset[int]
    slow: SlowWait


class DelayedShapes:
    """The shapes that are delayed; call :meth:`connect` first, and after each reconnect."""

    def __init__(self) -> None:
        self._delays: dict[str, _Delay] = {}

    @property
    def shape_ids(self) -> Set[str]:
        """The shapes that are delayed."""
        return self._delays.keys()

    def connect(self, server: PublishedTables) -> None:
        """Continue over a new connection."""
        self._server = server
        self._partly_sent = PartlySent(server)

    def admit(self, resolved: Sequence[tuple[ShapeDefinition, TableBinding]], *, is_new_source: bool) -> list[NewShape]:
        """Return the new shapes that can be added now, and delay the others, in place of those delayed before."""
        oids = {binding.oid for _, binding in resolved}
        at_slot = self._partly_sent.published_before_slot(oids) if is_new_source else frozenset()
        waits = self._partly_sent.transactions(oids)
        new, delays = list[NewShape](), dict[str, _Delay]()
        for definition, binding in resolved:
            starts_at_slot = binding.oid in at_slot
            # Without a snapshot, it would miss what it has between the slot's position and a later start.
            if binding.oid not in waits or (starts_at_slot and definition.snapshot is False):
                new.append(NewShape(definition, binding, starts_at_slot))
                continue
            known = self._delays.get(definition.id)
            slow = SlowWait() if known is None else known.slow
            delays[definition.id] = _Delay(".".join(binding.table), waits[binding.oid], slow)
        self._delays = delays
        return new

    def is_any_ready(self) -> bool:
        """Whether all that a delayed shape waits for has ended; then pass the new shapes to :meth:`admit` again."""
        if not self._delays:
            return False
        snapshot = self._server.snapshot()
        return any(all(map(snapshot.sees, delay.xids)) for delay in self._delays.values())

    def log_slow(self, now_s: float) -> None:
        """Log once which shapes have been delayed for long; ``now_s`` is a monotonic time."""
        slow: dict[frozenset[int], list[str]] = {}
        for shape_id, delay in sorted(self._delays.items()):
            if delay.slow.is_due(now_s):
                slow.setdefault(delay.xids, []).append(shape_id)
        for xids, shape_ids in slow.items():
            logger.warning(
                "shapes not added yet shape_ids=%s reason=the server may not send all changes of table %s by "
                "transaction %s, which may have begun before the table was published; they are added once it has ended",
                *(listed(shape_ids), self._delays[shape_ids[0]].table, listed([str(xid) for xid in sorted(xids)])),
            )
