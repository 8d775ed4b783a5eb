"""``CapturedSource``: the state of one source, kept across reconnects for the life of the process.

While the process is disconnected, another one may capture the same slot, add and remove shapes, and route by them. So
:meth:`CapturedSource.resume` replaces this process's state by the topics'. It keeps only what this process has
published itself, which remains valid.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from flushtracker.capture.shapes.bound_tables import ServerQueries
from flushtracker.capture.shapes.carried_entries import carried_entries, carried_publication
from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.lost_starts import lost_starts, moved_partitions
from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.source.continuity import (
    SlotPositions,
    check_claimed,
    check_continues,
    check_slot,
    check_upgraded,
)
from flushtracker.capture.source.prior_state import PriorState
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.history_check import ResendCheck, check_positions
from flushtracker.capture.wire.outbox import Outbox, Publisher
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.capture.wire.stuck_ack import StuckAck
from flushtracker.errors import SlotError, listed
from flushtracker.events.registry_events import SourceEntry
from flushtracker.events.topic_rules import Topics
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.shapes.shapes_file import ShapesFile
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.timeline_history import TimelineHistory

logger = logging.getLogger(__name__)

_RESTORE = "its topic was lost or replaced. Restore the topic, or start with --new-epoch: all shapes begin again"


class CapturedSource:
    """One source; ``prior`` must be read while holding the slot."""

    def __init__(
        self,
        prior: PriorState,
        publisher: Publisher,
        topics: Topics,
        limit: EventLimit,
        refused: RefusedShapes | None = None,
    ) -> None:
        self.source = prior.source
        self.name = str(prior.source)
        self.server_id = prior.system_id
        self._prior = prior
        self._switch: int | None = None
        self._seal: UpgradeSeal | None = None
        self._history = TimelineHistory(prior.source.timeline)
        self.last_transaction = prior.last_transaction
        self.status = StandbyStatus(0)
        self.stuck_ack = StuckAck()
        self.outbox = Outbox(publisher, topics, self._handle_published, limit)
        self.subscriptions: Subscriptions | None = None
        self._delayed = DelayedShapes(refused)
        self._has_begun = False
        self._published_lsn = -1

    def resume(self, prior: PriorState, confirmed_lsn: int) -> None:
        """Continue from ``prior``, read again for this source after the slot was lost and regained.

        Raises:
            SlotError: the registry has lost what this process registered.
        """
        self._require_registered(prior)
        own, found = self.last_transaction, prior.last_transaction
        if found is not None and (own is None or found.lsn > own.lsn):
            logger.warning("another process has captured in between source=%s last_transaction=%s", self.name, found)
            self.last_transaction = found
        if self.subscriptions is not None and not prior.entries.are_same(self.subscriptions.entries, confirmed_lsn):
            logger.warning("another process has changed the shape registry source=%s", self.name)
            self.subscriptions = None
        self._prior = prior
        self.server_id = prior.system_id

    @property
    def holder(self) -> str | None:
        """The token of the capture that has claimed the source, as last read."""
        return None if self._prior.entries.source is None else self._prior.entries.source.holder

    def check_server(self, history: TimelineHistory, positions: SlotPositions, last_ack: int | None) -> bool:
        """Check that the server's timeline, WAL and slot continue the source; return whether this is a takeover.

        A takeover is to a later timeline or to an upgraded server. Call this before the claim, so that a server
        restored from an old copy does not fence anyone.

        Raises:
            SlotError: it does not, or it lacks what was published or acknowledged.
        """
        entry, self._history, self._switch, self._seal = self._prior.entries.source, history, None, None
        confirmed_lsn = positions.confirmed_lsn
        if entry is not None and self._prior.is_upgrade:
            self._seal = positions.seal
            if self._seal is None:
                raise SlotError(f"source {self.name}: the seal of the upgrade is gone from the server")
            known_lsn = max(
                self._prior.published_lsn, entry.starts_after.tx_offset, -1 if last_ack is None else last_ack
            )
            check_upgraded(
                entry,
                self._seal,
                self.last_transaction,
                confirmed_lsn=confirmed_lsn,
                known_lsn=known_lsn,
                last_ack=last_ack,
            )
        elif entry is not None:
            recorded = TimelineHistory(self.source.timeline) if entry.history is None else entry.history
            safe_lsn = max(entry.starts_after.tx_offset, -1 if last_ack is None else last_ack)
            known_lsn = max(self._prior.published_lsn, safe_lsn)
            if entry.claimed is not None:
                check_claimed(self.name, entry.claimed, history)
            self._switch = check_continues(self.name, recorded, history, known_lsn=known_lsn)
            if self._switch is not None:
                check_slot(self.name, switch=self._switch, confirmed_lsn=confirmed_lsn, safe_lsn=safe_lsn)
            own_lsn = -1 if self.last_transaction is None else self.last_transaction.lsn
            check_positions(
                self.name,
                wal_lsn=positions.wal_end,
                confirmed_lsn=confirmed_lsn,
                safe_lsn=safe_lsn,
                published_lsn=max(self._prior.published_lsn, own_lsn),
            )
        return self._switch is not None or self._seal is not None

    def may_be_published_by_another(self, holder: str) -> bool:
        """Whether another capture than ``holder`` has claimed the source and not released it."""
        entry = self._prior.entries.source
        is_released = entry is not None and entry.holder is None and entry.published_lsn is not None
        return entry is not None and entry.holder != holder and not is_released

    @property
    def is_sealed(self) -> bool:
        """Whether a claim will clear the token of a seal, by which another server could prove an upgrade."""
        entry = self._prior.entries.source
        return entry is not None and entry.sealed is not None and self._seal is None

    def release(self) -> None:
        """Release the claim when everything is confirmed, so that the next capture need not wait for this one."""
        if self.subscriptions is not None:
            self.subscriptions.release()

    def claim(self, holder: str, wal_end: int) -> None:
        """Claim the source for this connection, which fences other captures; a new source has no entry to claim.

        On a later timeline, servers that are not on it are refused from then on. On the same one, a capture that was
        not stopped may still publish transactions before ``wal_end``, the end of the WAL when this process got the
        slot. The token of a seal is cleared, unless this server was upgraded from the sealed one.
        """
        entry = self._prior.entries.source
        if entry is None:
            return
        taken_to = None if self._switch is None else self._history
        published_lsn, ends = self._prior.published_lsn, self._prior.ends
        if taken_to is None and self._seal is None and self.may_be_published_by_another(holder):
            published_lsn = max(published_lsn, wal_end - 1)
        claimed = replace(entry, holder=holder, published_lsn=published_lsn, ends=ends, claimed=taken_to)
        if self._seal is None:
            claimed = replace(claimed, sealed=None)
        if claimed.history is None and self._switch is None and self._seal is None:
            claimed = replace(claimed, history=self._history)
        if claimed != entry:
            self._publish_source(claimed)
        if self.subscriptions is not None:
            self.subscriptions.handle_claim(claimed)

    def retract(self, *, has_waited: bool) -> None:
        """Abandon a takeover to another timeline before anything was recorded.

        The claim is released only if this capture ``has_waited`` for others. Otherwise one of them may still publish,
        and the next capture must wait for it, as after a kill.
        """
        entry = self._prior.entries.source
        if entry is not None:
            self._publish_source(replace(entry, holder=None if has_waited else entry.holder, claimed=None))

    def _publish_source(self, entry: SourceEntry) -> None:
        self.outbox.publish_entries([entry])
        self._prior = replace(self._prior, entries=replace(self._prior.entries, source=entry))

    def connect(self, status: StandbyStatus, last_ack: int | None) -> None:
        """Continue over a new connection that holds the slot; its positions are kept in ``status``.

        Raises:
            SlotError: the registry was lost.
        """
        entries = self._prior.entries
        if entries.source is None and last_ack is not None:
            raise SlotError(
                f"source {self.name} has acks up to {format_lsn(last_ack)}, but no entry in the shape registry: "
                f"{_RESTORE}"
            )
        if unbound := entries.unbound_shapes():
            raise SlotError(f"source {self.name}: the shape registry has no table for {listed(unbound)}: {_RESTORE}")
        self.status = status
        status.handle_published(self._published_lsn)

    def resend_check(self, follows_lsn: int, last_ack: int | None, *, has_messages: bool) -> ResendCheck | None:
        """The check of a connection that sends from ``follows_lsn`` on; ``None`` if nothing was published before."""
        last = self.last_transaction
        if last is None:
            return None
        return ResendCheck(self.name, last, follows_lsn, last_ack, has_messages=has_messages)

    def begin(
        self, tables: ServerQueries, confirmed_lsn: int, load_shapes: Callable[[], ShapesFile], holder: str
    ) -> Subscriptions:
        """The source's shapes; the first call applies the shapes file, and registers the source if it is new.

        On a later timeline than before, the shapes and the source are recorded as being on it.

        A later call does not apply the file: shapes that another process has added or removed meanwhile stay so until
        the shapes file of this process changes.

        Raises:
            ConfigError: the file as a whole cannot be read.
            ShapeError: too many shapes would be removed.
        """
        if self._switch is not None:
            self._move_entries(self._switch)
        if self._seal is not None:
            self._carry_entries(tables, self._seal, confirmed_lsn)
        subscriptions = self.subscriptions
        if subscriptions is None:
            subscriptions = Subscriptions(
                self.name, self._prior.entries, self.outbox, tables, confirmed_lsn, self._delayed
            )
        else:
            subscriptions.connect(tables, confirmed_lsn)
        if self._switch is not None:
            subscriptions.follow_switch(self._history, self._switch)
            logger.warning(
                "source continues on a later timeline source=%s timeline=%d switch_lsn=%s published_lsn=%s",
                *(self.name, self._history.timeline, format_lsn(self._switch)),
                format_lsn(max(self._prior.published_lsn, 0)),
            )
        subscriptions.check_routing()
        subscriptions.check_publication()
        subscriptions.tables.check()
        if not self._has_begun:
            shapes = load_shapes()
            subscriptions.apply_definitions(shapes.definitions, shapes.allow_removing, shapes.faults)
        # After the shapes: until this entry exists, nothing was routed, and they may start at the slot's position.
        subscriptions.begin_source(self.server_id, self._history, holder, self._prior.ends)
        self.subscriptions = subscriptions
        self._has_begun = True
        return subscriptions

    def _move_entries(self, switch: int) -> None:
        """Register entries with positions beyond the switch point again, with new ones; the router is not affected."""
        entries = self._prior.entries
        shapes = {entry.definition.id: entry for entry in lost_starts(entries.shapes, switch).moved}
        moved = moved_partitions(entries.partitions, switch)
        partitions = {(entry.table_oid, entry.binding.oid): entry for entry in moved}
        if shapes or partitions:
            self.outbox.publish_entries([*shapes.values(), *moved])
            entries = replace(
                entries,
                shapes=tuple(shapes.get(each.definition.id, each) for each in entries.shapes),
                partitions=tuple(
                    partitions.get((each.table_oid, each.binding.oid), each) for each in entries.partitions
                ),
            )
            self._prior = replace(self._prior, entries=entries)
            self.subscriptions = None

    def _carry_entries(self, tables: ServerQueries, seal: UpgradeSeal, confirmed_lsn: int) -> None:
        """Register the source and its tables as being on the upgraded server.

        The source comes last: until then, the next process repeats everything.
        """
        entries = self._prior.entries
        if entries.source is None:
            raise RuntimeError(f"source {self.name} is taken over without an entry")
        carried = carried_entries(entries, tables, seal.is_carried)
        source = replace(
            entries.source,
            starts_after=LogOffset.just_before(confirmed_lsn),
            publication=carried_publication(entries.source.publication, tables.check_publication(), seal.is_carried),
            history=self._history,
            system_id=self.server_id,
            sealed=None,
            earlier_timelines=entries.source.earlier_timelines
            + (self.source.timeline if entries.source.history is None else entries.source.history.timeline),
        )
        self.outbox.publish_entries([*carried.tables, *carried.partitions])
        self.outbox.publish_entries([source])
        self._prior = replace(self._prior, entries=replace(carried, source=source))
        self.subscriptions, self._seal = None, None
        logger.warning(
            "source continues on an upgraded server source=%s server=%s confirmed_lsn=%s",
            *(self.name, self.server_id, format_lsn(confirmed_lsn)),
        )

    def _require_registered(self, prior: PriorState) -> None:
        """Raise ``SlotError`` if the registry no longer has an entry that was confirmed to this process."""
        lost = []
        if self._has_begun and prior.entries.source is None:
            lost.append("the source's own entry")
        if self.subscriptions is not None:
            known = {entry.definition.id for entry in self.subscriptions.entries.shapes}
            missing = sorted(known - {entry.definition.id for entry in prior.entries.shapes})
            lost += [f"shape {shape_id}" for shape_id in missing]
        if lost:
            raise SlotError(
                f"source {self.name}: the shape registry no longer has {listed(lost)}, which this process had "
                f"registered: {_RESTORE}"
            )

    def _handle_published(self, commit_lsn: int) -> None:
        self._published_lsn = max(self._published_lsn, commit_lsn)
        self.status.handle_published(commit_lsn)
