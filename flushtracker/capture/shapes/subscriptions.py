"""``Subscriptions``: the shapes that changes are routed to, kept in step with the file, the catalog and the registry.

Every change to a shape is published as its registry entry, and confirmed, before it takes effect. So a later process
routes resent transactions to the same shapes as the first time.

- A shape *starts after* the byte before the end of the server's flushed WAL at the time it is added: everything that
  any process has routed committed before that end, and the next commit record may start exactly there. A shape of a new
  source, for which nothing was routed yet, starts at the slot's position if its table was published before the slot was
  created.
- A shape is *removed at* the end of the server's flushed WAL; the router then sends it nothing more
  (:mod:`flushtracker.capture.shapes.removed_shapes`).
- A *later incarnation* of a shape starts like a new shape, but never before the end of the previous one. So its
  transactions commit above everything ever routed to the id, and a late flush or removal of the previous one does not
  count for them. If the previous one is still live, it ends then.
- Each table is recorded as it was when its shapes were bound to it, with its partitions
  (:mod:`flushtracker.capture.shapes.bound_tables`). A shape that cannot be kept after a schema change is *ended*:
  removed, with a reason (:mod:`flushtracker.shapes.table_binding`).
- A shape with a snapshot is published again once its start is visible
  (:mod:`flushtracker.capture.shapes.start_visibility`).
- A new *partition* joins the tables that it is a partition of before its first change is routed.
- If the publication was altered, changes may not have been sent, and every shape ends.
- If this release routes differently from the previous one, the affected shapes end, so that a resend reaches the same
  shapes as the first time (:mod:`flushtracker.shapes.routing_version`).
- The table of a new shape is added to a managed publication before anything else, and removed from it after its last
  shape (:mod:`flushtracker.postgres.publication`). After a kill in between, the next process does the rest.
- A shape is *delayed*, that is, not added yet, while its table is not published, or while the server may send only part
  of an open transaction's changes to it (:mod:`flushtracker.capture.shapes.delayed_shapes`). So it starts after these.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flushtracker.capture.shapes.bound_tables import BoundTables, ServerQueries
from flushtracker.capture.shapes.catalog_changes import CatalogChanges
from flushtracker.capture.shapes.delayed_shapes import DelayedShapes, NewShape
from flushtracker.capture.shapes.lost_starts import LOST_START, LOST_TABLE, lost_starts, lost_tables
from flushtracker.capture.shapes.new_partitions import warn_of_new_partitions
from flushtracker.capture.shapes.refused_shapes import Resolved
from flushtracker.capture.shapes.removed_shapes import RemovedShapes
from flushtracker.capture.shapes.shape_losses import ShapeLosses
from flushtracker.capture.shapes.shape_registry import ShapeRegistry, SourceEntries, ended_shapes, last_evictions
from flushtracker.capture.shapes.start_visibility import StartVisibility
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import SlotError, listed
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry, SourceEntry
from flushtracker.shapes.definition import ShapeDefinition, ShapeFault, dependency_layers
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.old_rows import old_columns
from flushtracker.shapes.routing_version import routing_version
from flushtracker.shapes.shape_parts import whole_tables
from flushtracker.status.capture_status import EndedShape, WaitingShapes
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory

logger = logging.getLogger(__name__)

_MOST_LOGGED: Final = 100
"""If more shapes are added or removed at once, only this many are logged; the registry has all."""


class Subscriptions:
    """The shapes of one source. After a reconnect, call :meth:`connect` and then ``tables.check``.

    ``confirmed_lsn`` is the slot's: shapes may start there until the source has begun. The caller reports arriving
    transactions to ``starts``. ``delayed`` outlives this object when the process rereads the registry.
    """

    def __init__(
        self,
        source: str,
        entries: SourceEntries,
        outbox: Outbox,
        tables: ServerQueries,
        confirmed_lsn: int,
        delayed: DelayedShapes | None = None,
    ) -> None:
        self.router = EventRouter(by_oid=True)
        self._source = source
        self._outbox = outbox
        self._first_starts_after = LogOffset.just_before(confirmed_lsn)
        self._source_entry = entries.source
        self._bound = BoundTables(source, entries.tables, entries.partitions, outbox, self.router.partitions)
        self._registry = ShapeRegistry(entries.shapes)
        self.removed = RemovedShapes(source, self._registry, outbox)
        self._losses = ShapeLosses(self._registry, self._bound, self.router)
        self.tables = CatalogChanges(self._registry, self._bound, self.router, self._losses, self.end_shapes)
        self.evictions = last_evictions(entries.shapes)
        """The last shapes evicted from this source, by any process, oldest first; may be read from any thread."""
        self.ended: tuple[EndedShape, ...] = ()
        """The first, by id, of the shapes that are defined but have ended; may be read from any thread."""
        self._delayed = DelayedShapes() if delayed is None else delayed
        self.refused = self._delayed.refused
        for entry in self._registry.live:
            self.router.add_shape(entry.definition, entry.starts_after.tx_offset, entry.table_oid)
        self.removed.publish_again(confirmed_lsn)
        self._arrange_layers()
        self.connect(tables, confirmed_lsn)

    def connect(self, tables: ServerQueries, confirmed_lsn: int) -> None:
        """Continue over a new connection, which sends from ``confirmed_lsn`` on."""
        self._server = tables
        self.tables.connect(tables, confirmed_lsn)
        self.starts = StartVisibility(tables, confirmed_lsn)
        self._delayed.connect(tables)
        self._wait_for_starts(self._registry.live)

    @property
    def entries(self) -> SourceEntries:
        """The registry's entries of the source, as known to this process."""
        return SourceEntries(
            self._source_entry,
            (*self._registry.live, *self._registry.removed),
            self._bound.entries,
            self._bound.partition_entries,
        )

    def handle_claim(self, entry: SourceEntry) -> None:
        """Note that the source was claimed for this connection; the rest of its entry is unchanged."""
        self._source_entry = entry

    def release(self) -> None:
        """Release the claim of the source, once everything published before is confirmed."""
        if self._source_entry is not None and self._source_entry.holder is not None:
            self._outbox.wait_until_confirmed()
            self._publish_source(replace(self._source_entry, holder=None))

    def seal(self, token: str) -> None:
        """Record the seal that allows upgrading the server; the next capture of the server clears it."""
        if self._source_entry is None:
            raise RuntimeError(f"source {self._source} is sealed before it has begun")
        self._publish_source(replace(self._source_entry, sealed=token))

    def follow_switch(self, history: TimelineHistory, switch: int) -> None:
        """Record that the source continues with ``history``, which left the previous timeline at ``switch``.

        Shapes that start beyond it end, unless the caller has moved them, and so do those on tables that were altered
        there.
        """
        if self._source_entry is None:
            return
        tables = lost_tables(self._bound.entries, self._bound.partition_entries, switch)
        on_tables = [entry.definition.id for oid in tables for entry in self._registry.live_on(oid)]
        starts = lost_starts(self._registry.live, switch).ended
        self.end_shapes(dict.fromkeys(on_tables, LOST_TABLE) | dict.fromkeys(starts, LOST_START))
        self._publish_source(replace(self._source_entry, history=history, claimed=None))

    def begin_source(
        self,
        system_id: str | None = None,
        history: TimelineHistory | None = None,
        holder: str | None = None,
        ends: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        """Register the source unless it has begun: fragments are published from here on, and shapes start later.

        ``system_id`` and ``history`` are the server's.
        """
        if self._source_entry is None:
            publication = self._server.check_publication()
            entry = SourceEntry(
                self._source,
                self._first_starts_after,
                publication,
                routing_version(),
                history=history,
                holder=holder,
                published_lsn=None if holder is None else -1,
                ends=ends,
            )
            if system_id != entry.server_id:
                entry = replace(entry, system_id=system_id)
            self._outbox.publish_entries([entry])
            self._source_entry = entry

    def apply_definitions(
        self, definitions: Iterable[ShapeDefinition], allow_removing: int = 0, faults: Collection[ShapeFault] = ()
    ) -> None:
        """Add, update and remove shapes to match ``definitions``; ``faults`` are those of the file's other entries.

        Refused definitions change nothing and are reported by ``refused``. Some shapes may be delayed, or allowed by
        the catalog later: call :meth:`add_waiting` when :meth:`can_add_delayed`, and at intervals if ``refused`` has
        some.

        Raises:
            ShapeError: too many shapes would be removed; nothing has changed.
        """
        defined = tuple(definitions)
        found = self._apply(defined, allow_removing, faults)
        self.ended = ended_shapes(self._registry.compare(defined, len(self._registry.live)).ended)
        self.refused.set_faults((*faults, *found))
        ids = {definition.id for definition in defined} | {fault.shape_id for fault in faults}
        self.removed.defined = None if None in ids else frozenset(shape_id for shape_id in ids if shape_id is not None)

    def _apply(
        self, defined: Sequence[ShapeDefinition], allow_removing: int = 0, faults: Collection[ShapeFault] = ()
    ) -> tuple[ShapeFault, ...]:
        """Change the shapes; return the definitions that contradict the registry."""
        diff = self._registry.compare(defined, allow_removing, faults)
        if len(diff.added) + len(diff.removed) > _MOST_LOGGED:
            logger.info("changing shapes added=%d removed=%d", len(diff.added), len(diff.removed))
        for entry in diff.ended:
            logger.warning(
                "shape already ended shape_id=%s removed_at=%s reason=%s",
                *(entry.definition.id, entry.removed_at, entry.ended_because),
            )
        new = self._admit(diff.added)
        if new or diff.updated or diff.removed:
            self.tables.bind([table for shape in new for table in shape.tables])
            # Again, because binding a changed table may have ended its shapes.
            diff = self._registry.compare(defined, max(allow_removing, len(diff.removed)), faults)
            if any(shape.definition.snapshot is False for shape in new):
                # Without a snapshot, a shape must not get a part of a transaction that has ended.
                self._server.flush_commits()
            wal_end = self._server.wal_end()
            removed_at = LogOffset(wal_end, 0)
            removed = [
                replace(self._registry[shape_id], removed_at=removed_at, evicted_at_ms=None)
                for shape_id in diff.removed
            ]
            again = [shape.definition.id for shape in new if self._registry.is_live(shape.definition.id)]
            removed += [
                replace(self._registry[shape_id], removed_at=removed_at, ended_because=BEGUN_AGAIN)
                for shape_id in again
            ]
            self._put([*removed, *diff.updated])
            self._remove(removed)
            added = [self._entry(shape, LogOffset.just_before(wal_end)) for shape in new]
            self._put(added)
            for entry in added:
                self.router.add_shape(entry.definition, entry.starts_after.tx_offset, entry.table_oid)
            _log_changed("added", added)
            warn_of_new_partitions(new)
            self._wait_for_starts(added)
        self._arrange_layers()
        return diff.refused

    def _admit(self, definitions: Sequence[ShapeDefinition]) -> list[NewShape]:
        """Add the tables of new shapes to the publication, and return the shapes that can be added now."""
        resolved = self.refused.resolve(definitions, self._resolve)
        oids = old_columns(each for each in resolved if not each[1].published_by)
        unpublished = self._server.publish_tables(oids) if oids else {}
        if oids.keys() - unpublished.keys():
            # Shapes are bound to tables as they are in the publication.
            resolved = self.refused.resolve(definitions, self._resolve)
        return self._delayed.admit(resolved, unpublished, is_new_source=self._source_entry is None)

    def _resolve(self, definitions: Sequence[ShapeDefinition]) -> Resolved:
        resolved = self._server.resolve(definitions)
        self._outbox.limit.require_entries(self._source, resolved)
        return resolved

    def add_waiting(self) -> None:
        """Add the shapes that were delayed, or not allowed by the catalog, as far as possible.

        Changes by another process since then are kept.
        """
        live = [entry.definition for entry in self._registry.live]
        waiting = (each for each in self._delayed.definitions if not self._registry.has_begun(each))
        self.refused.add_faults(self._apply([*live, *waiting]))

    def retract_tables(self) -> None:
        """Remove tables from a managed publication that no shape needs, not even a delayed one."""
        self._server.retract_tables(self._registry.table_oids | self._delayed.table_oids)

    @property
    def waiting(self) -> tuple[WaitingShapes, ...]:
        """The delayed shapes by what they wait for; may be read from any thread."""
        return self._delayed.waiting

    def can_add_delayed(self) -> bool:
        """Whether some delayed shape has nothing left to wait for."""
        return self._delayed.is_any_ready()

    def check_starts(self, now_s: float) -> None:
        """Publish the shapes whose starts have become visible; ``now_s`` is monotonic."""
        self._delayed.log_slow(now_s)
        visible = self.starts.check(now_s)
        if visible:
            self._put([replace(self._registry[shape_id], starts_visible=True) for shape_id in visible])
            logger.info("start visible shape_ids=%s", listed(visible))

    def evict(self, shape_id: str, reason: str, now_ms: int) -> bool:
        """Evict a shape: end it although it could be delivered. Return whether it was still live."""
        if not self._registry.is_live(shape_id):
            return False
        self.end_shapes({shape_id: reason}, evicted_at_ms=now_ms)
        logger.warning("shape evicted shape_id=%s reason=%s", shape_id, reason)
        return True

    def end_shapes(self, reasons: Mapping[str, str], evicted_at_ms: int | None = None) -> None:
        """Remove shapes that can no longer be delivered, given their reasons by id; the others continue.

        ``evicted_at_ms`` marks an eviction of shapes that could be delivered.
        """
        if not reasons:
            return
        removed_at = LogOffset(self._server.wal_end(), 0)
        entries = []
        for shape_id, reason in reasons.items():
            logger.error("shape ended shape_id=%s reason=%s; resync it, or define it under a new id", shape_id, reason)
            entry = self._registry[shape_id]
            # After a failover, the WAL may end before the shape's start.
            ended_at = max(removed_at, entry.starts_after)
            entry = replace(entry, removed_at=ended_at, ended_because=reason, evicted_at_ms=evicted_at_ms)
            entries.append(entry)
        self._put(entries)
        self._remove(entries)
        self._arrange_layers()

    def check_routing(self) -> None:
        """End the shapes that this release routes differently from the previous one; call it before anything is routed.

        Raises:
            SlotError: a newer release has routed the source.
        """
        entry, version = self._source_entry, routing_version()
        if entry is None or entry.routing == version:
            return
        if entry.routing > version:
            raise SlotError(
                f"source {self._source} was routed by rules of version {entry.routing}, but this release routes by "
                f"version {version}: some changes would reach other shapes than before. Start the newer release"
            )
        self.end_shapes(self._losses.by_routing(entry.routing))
        self._publish_source(replace(entry, routing=version))

    def check_publication(self) -> None:
        """End every shape if the publication was altered, because changes may not have been sent meanwhile.

        Raises:
            PostgresError: the publication is missing, or does not publish everything.
        """
        version, entry = self._server.check_publication(), self._source_entry
        if entry is None or entry.publication == version:
            return
        self.end_shapes(self._losses.by_publication())
        self._publish_source(replace(entry, publication=version))

    def _publish_source(self, entry: SourceEntry) -> None:
        """Publish the source's entry with the current ``published_lsn``.

        This may replace another capture's recent claim, which had it too.
        """
        if entry.published_lsn is not None:
            entry = replace(entry, published_lsn=max(entry.published_lsn, self._outbox.last_lsn))
        self._source_entry = entry
        self._outbox.publish_entries([entry])

    def _entry(self, new: NewShape, now: LogOffset) -> ShapeEntry:
        """The entry of a new shape; it has a snapshot unless its definition excludes one."""
        definition = replace(new.definition, snapshot=new.definition.snapshot is not False, at=None)
        starts_after = self._first_starts_after if new.starts_at_slot else now
        before = self._registry.last_ended(definition.id)
        if before is None or before.removed_at is None:
            return ShapeEntry(self._source, definition, new.tables[0].oid, starts_after)
        # The end may be the end of the WAL, and the next commit record may start there.
        starts_after = max(starts_after, before.removed_at)
        return ShapeEntry(
            self._source,
            definition,
            new.tables[0].oid,
            starts_after,
            evicted_at_ms=before.evicted_at_ms,
            earlier_writers=tuple(dict.fromkeys(each for each in before.writers if each != definition.writer)),
        )

    def _remove(self, entries: Collection[ShapeEntry]) -> None:
        for entry in entries:
            self.router.remove_shape(entry.definition.id)
            self._outbox.forget(entry.definition.id)
            self.starts.forget(entry.definition.id)
            self.removed.publish(entry)
        _log_changed("removed", entries)

    def _wait_for_starts(self, entries: Iterable[ShapeEntry]) -> None:
        waiting = [entry for entry in entries if entry.definition.snapshot and not entry.starts_visible]
        self.starts.wait_for({entry.definition.id: entry.starts_after.tx_offset for entry in waiting})

    def _put(self, entries: Sequence[ShapeEntry]) -> None:
        self._outbox.publish_entries(entries)
        for entry in entries:
            self._registry.put(entry)
        self.evictions = last_evictions(entries, self.evictions)
        ended = [entry for entry in entries if entry.ended_because is not None]
        changed = {entry.definition.id for entry in entries}
        if ended or any(each.shape_id in changed for each in self.ended):
            self.ended = ended_shapes(ended, (each for each in self.ended if each.shape_id not in changed))

    def _arrange_layers(self) -> None:
        self._outbox.layers = dependency_layers(self._registry.dependencies)


def _log_changed(what: str, entries: Collection[ShapeEntry]) -> None:
    """Log that shapes were added or removed, with where they start or end."""
    if len(entries) > _MOST_LOGGED:
        ids = listed([entry.definition.id for entry in entries])
        logger.info("shapes %s count=%d shape_ids=%s", what, len(entries), ids)
        return
    for entry in entries:
        place = f"starts_after={entry.starts_after}" if what == "added" else f"removed_at={entry.removed_at}"
        logger.info("shape %s shape_id=%s %s", what, entry.definition.id, place)
        if what == "added" and (tables := whole_tables(entry.definition)):
            names = listed([".".join(table) for table in tables])
            logger.warning(
                "shape has a copy of whole tables in its log shape_id=%s tables=%s", entry.definition.id, names
            )
