"""``FoundShape``: a shape in one version of the shape log, and which of its rows are visible.

With a snapshot, these are the snapshot's rows and the transactions that it does not contain.
"""

from dataclasses import dataclass
from typing import Final

from flushtracker.delta.storage import literal
from flushtracker.errors import ConfigError, PositionError, ShapeEndedError, SnapshotMissingError
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot, aligned
from flushtracker.shapes.shape_schema import shape_columns, shape_key, shape_schema
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

_SHORT: Final = 100
_BEFORE_CHANGES: Final = LogOffset.last_before_real_offsets()
_BEGIN_AGAIN: Final = "read the shape again from its beginning"


@dataclass(frozen=True, slots=True)
class FoundShape:
    """A shape in one ``version`` of the shape log; ``last_commit`` is its last transaction that may be read."""

    version: int
    source: str
    shape_id: str
    last_commit: int | None
    snapshot: ShapeSnapshot | None
    entry: ShapeEntry | None
    table: TableBinding | None
    had_snapshot: bool = False
    """Whether it had a snapshot under an earlier source, which this one has replaced."""
    inner: tuple[TableBinding, ...] = ()
    """The tables that its subqueries read, except its own, as far as the registry has them."""

    @property
    def name(self) -> str:
        return f"shape {self.shape_id} of source {self.source}"

    @property
    def condition(self) -> str:
        return f"shape_id = {literal(self.shape_id)} AND source = {literal(self.source)}"

    @property
    def attempt(self) -> int:
        """The attempt of the shape's snapshot; 0 without one."""
        return 0 if self.snapshot is None else self.snapshot.attempt

    @property
    def is_empty(self) -> bool:
        """Whether the log has neither a complete transaction nor a snapshot of it."""
        return self.last_commit is None and self.snapshot is None

    @property
    def bound(self) -> LogOffset | None:
        """The end of its last transaction, or the start of its incarnation if there is none since."""
        if self.snapshot is not None and self.snapshot.incarnation > 1 and not self.snapshot.is_mark:
            return LogOffset.last_of(max(self.last_commit or 0, self.snapshot.starts_after))
        if self.last_commit is not None:
            return LogOffset.last_of(self.last_commit)
        return None if self.snapshot is None else _BEFORE_CHANGES

    @property
    def begins_at(self) -> int:
        """See ``ShapeSnapshot.begins_at``; 0 without a snapshot."""
        return 0 if self.snapshot is None else self.snapshot.begins_at

    def position(self, begun: Position | None = None) -> Position:
        """Where a follower that has read up to the bound continues; ``begun`` is its earlier position, if any.

        Its attempt does not change: a later snapshot has transactions that the follower has not read.
        """
        tx_offset = max(self.last_commit or 0, self.begins_at)
        if begun is None:
            return Position(self.source, tx_offset, self.attempt)
        return Position(self.source, max(tx_offset, begun.tx_offset), begun.attempt)

    @property
    def changes_position(self) -> Position:
        """Where a follower of only the changes continues after the bound; it started without a snapshot."""
        return Position(self.source, 0 if self.bound is None else self.bound.tx_offset, 0)

    @property
    def has_subqueries(self) -> bool:
        """Whether its log is known to have rows of several tables, only some of which are the shape's rows."""
        return self.entry is not None and bool(self.entry.definition.inner_tables)

    @property
    def columns(self) -> dict[str, ColumnBinding]:
        """The shape's columns in the table's order, as far as the registry has them."""
        if self.table is None or self.entry is None:
            return {}
        return shape_columns(self.entry.definition, self.table)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the shape's key, as far as the registry has them."""
        if self.table is None or self.entry is None:
            return ()
        return shape_key(self.entry.definition, self.table)

    @property
    def schema(self) -> str | None:
        """The digest of its columns and types, as far as the registry has them."""
        if self.table is None or self.entry is None:
            return None
        return shape_schema(self.entry.definition, self.table)

    def counted(self, after_tx: int | None = None) -> str:
        """The condition for the shape's visible rows up to the bound; only those of transactions after ``after_tx``.

        It has only integers, because Spark and DataFusion have different literals for texts.
        """
        conditions = [f"tx_offset <= {-1 if self.bound is None else self.bound.tx_offset}"]
        if self.snapshot is not None:
            attempt = f"tx_offset = 0 AND chunk = {self.snapshot.attempt:d}"
            conditions.append(f"({attempt} OR tx_offset > 0 AND NOT {_contained(self.snapshot)})")
        if after_tx is not None:
            conditions.append(f"tx_offset > {after_tx:d}")
        return " AND ".join(conditions)

    def has_more(self, after_tx: int) -> bool:
        """Whether the log has a complete transaction after ``after_tx``."""
        return self.last_commit is not None and self.last_commit > after_tx

    def missed(self, after: Position) -> str | None:
        """The condition for rows after ``after`` that are skipped although a follower there has not read them."""
        if self.snapshot is None or not self.has_more(after.tx_offset) or after.tx_offset >= self.snapshot.lsn:
            return None
        return f"{_contained(self.snapshot)} AND tx_offset > {after.tx_offset:d}"

    def require_types(self) -> None:
        """Raise ``ConfigError`` if the types of the shape's columns are not known."""
        if self.table is None:
            raise ConfigError(
                f"the types of {self.name} are not known there: the registry table is missing, or has its table as it "
                "was at another time; name the registry table with shapes, or leave out typed"
            )

    def require_started(self) -> None:
        """Raise ``SnapshotMissingError`` if the shape was resynced and the log lacks its new snapshot."""
        begun = 1 if self.entry is None else self.entry.definition.incarnation
        found = 1 if self.snapshot is None else self.snapshot.incarnation
        if begun > found or (self.snapshot is not None and self.snapshot.is_mark):
            raise SnapshotMissingError(
                f"{self.name} was begun again (incarnation {max(begun, found)}) and has no snapshot since; run "
                "flushtracker snapshot"
            )

    def require_snapshot(self) -> None:
        """Raise ``SnapshotMissingError`` if the log lacks the shape's initial snapshot."""
        if self.snapshot is None and self.wants_snapshot:
            raise SnapshotMissingError(
                f"{self.name} has no snapshot yet of the rows that its table had before; run flushtracker snapshot, or "
                "read the changes alone, with changes_only (flushtracker read --log-rows --changes)"
            )

    @property
    def wants_snapshot(self) -> bool:
        """Whether the shape starts with a snapshot, by the log, the registry or the previous source."""
        if self.snapshot is not None and self.snapshot.is_taken:
            return True
        return self.had_snapshot if self.entry is None else bool(self.entry.definition.snapshot)

    def require_inside(self, at: LogOffset) -> None:
        """Raise ``ConfigError`` if the log does not reach ``at``, or starts after it."""
        starts_after = None if self.entry is None else self.entry.starts_after
        if starts_after is not None and at < starts_after and at != _BEFORE_CHANGES:
            raise ConfigError(
                f"at is {at}, but the log of {self.name} starts after {starts_after}; name that or a later offset, or "
                "none"
            )
        ends = [each for each in (self.bound, starts_after) if each is not None]
        if not ends or at > max(ends):
            reached = f"only reaches {max(ends)}" if ends else "has no whole transaction yet"
            raise ConfigError(f"at is {at}, but the log of {self.name} {reached}; read it again later")

    def may_be_before(self, after: Position) -> bool:
        """Whether a position with another attempt may be older than the shape's last resync."""
        return (
            self.snapshot is not None
            and self.snapshot.incarnation > 1
            and after.tx_offset <= self.snapshot.starts_after
        )

    def require_reached(self, after: Position) -> None:
        """Raise ``PositionError`` if the log has not reached the position, which may come from a difference."""
        current = self.position()
        if aligned(after.tx_offset) > current.tx_offset or after.attempt > current.attempt:
            raise PositionError(
                f"position {after} is ahead of the log of {self.name}, which has reached {current}: the log is an "
                f"older copy, or another one; continue with the one that was read, or {_BEGIN_AGAIN}"
            )

    def require_followed(self, after: Position) -> None:
        """Raise ``PositionError`` if a follower that started without a snapshot lacks rows of the snapshot, or a fold
        has replaced changes that a follower of another snapshot has not read.
        """
        if self.snapshot is None:
            return
        if self.snapshot.is_fold and after.tx_offset < self.snapshot.lsn:
            horizon = LogOffset.last_of(self.snapshot.lsn)
            raise PositionError(f"position {after} is before {horizon}, the horizon of {self.name}; {_BEGIN_AGAIN}")
        if after.attempt == 0 and self.wants_snapshot:
            raise PositionError(
                f"position {after} is from before {self.name} had a snapshot of its table; {_BEGIN_AGAIN}"
            )
        made_from = self.snapshot.made_from
        if self.snapshot.is_fold and (made_from is None or after.attempt < made_from):
            raise self.lost(after)

    def lost(self, after: Position) -> PositionError:
        """The error for a follower at ``after`` whose rows are no longer in the log, so that there is no difference."""
        lacks = "the log no longer has what it had there"
        if self.source != after.source:
            since = f"is of source {after.source}, and shape {self.shape_id} was begun again under source {self.source}"
        elif self.is_empty:
            since = f"is of {self.name}, whose log has no rows (any more)"
        elif self.may_be_before(after):
            begun = 1 if self.snapshot is None else self.snapshot.incarnation
            since = f"is from before {self.name} was begun again (incarnation {begun})"
        else:
            since = f"is from before the last snapshot of {self.name}"
        return PositionError(f"position {after} {since}; {lacks}: {_BEGIN_AGAIN}")

    def lost_changes(self, after: Position) -> PositionError:
        """The error for a follower of only the changes, if the log may lack some."""
        return PositionError(
            f"position {after} of changes alone is from before {self.name} was begun again, or its log folded, so some "
            f"since are missing; read the changes without a position, from where they begin now, or {_BEGIN_AGAIN}"
        )

    def require_state(self, at: LogOffset, last_commit: int | None) -> None:
        """Raise ``ConfigError`` if the state at ``at``, after ``last_commit``, cannot be read from the snapshot.

        States from the snapshot's moment on can be read, and the newest one, although its rows may then contain later
        transactions. States before the horizon of a fold are gone.
        """
        if self.snapshot is None:
            return
        horizon = LogOffset.last_of(self.snapshot.lsn)
        # The items that would show whether the horizon's transaction had ended there are folded.
        if self.snapshot.is_fold and at < horizon:
            raise ConfigError(
                f"at is {at}, but the log of {self.name} is folded up to its horizon {horizon}; name that or a later "
                "offset, or none"
            )
        is_newest = last_commit == self.last_commit and at >= LogOffset.last_of(max(self.snapshot.starts_after, 0))
        if at.tx_offset < self.snapshot.lsn and not is_newest:
            raise ConfigError(
                f"at is {at}, but the snapshot of {self.name} has later transactions too, and the log no longer has "
                "what it had there, or not yet all of what tells it; name "
                f"{LogOffset.last_of(self.snapshot.lsn)} or a later offset, or none"
            )


def not_followed(shape_id: str) -> PositionError:
    """The error for a request to continue after the rows of a shape with subqueries."""
    return PositionError(
        f"shape {shape_id} has subqueries, so its rows cannot be followed: its log has the changes of all of its "
        "tables; read that from its beginning, keep all rows by key, and select among them"
    )


def require_in_log(entry: ShapeEntry) -> None:
    """Raise ``ConfigError`` for a shape of another writer, which the log never contains."""
    definition = entry.definition
    if definition.writer != LOG_WRITER:
        raise ConfigError(
            f"shape {definition.id} of source {entry.source} is not in the shape log: its writer is "
            f"{definition.writer!r}; read it where that stores it"
        )


def require_readable(entry: ShapeEntry, *, even_if_ended: bool, has_log: bool) -> None:
    """Raise ``ShapeEndedError`` for a shape that is no longer written, unless ``even_if_ended``.

    Raise ``SnapshotMissingError`` instead if it is being resynced: its next entry and snapshot follow.
    """
    if entry.ended_because == BEGUN_AGAIN and not even_if_ended:
        raise SnapshotMissingError(
            f"shape {entry.definition.id} of source {entry.source} begins again, and has no snapshot since; run "
            "flushtracker snapshot"
        )
    how = "was removed by its owner" if entry.ended_because is None else f"has ended because {entry.ended_because}"
    what = f"shape {entry.definition.id} of source {entry.source} {how}, at {entry.removed_at}"
    if not has_log:
        raise ShapeEndedError(f"{what}, and its log has no rows (any more)")
    if not even_if_ended:
        raise ShapeEndedError(f"{what}; its log is still there; even_if_ended reads it")


def _contained(snapshot: ShapeSnapshot) -> str:
    """``ShapeSnapshot.contains`` as SQL.

    Short ranges are merged into one list of xids: there may be thousands, and that many conditions would be slow.
    """
    short = [(first, last) for first, last in snapshot.unseen if last - first < _SHORT]
    xids = [xid for first, last in short for xid in range(first, last + 1)]
    seen = [f"NOT xid BETWEEN {first:d} AND {last:d}" for first, last in snapshot.unseen if last - first >= _SHORT]
    if xids:
        seen.append(f"xid NOT IN ({', '.join(map(str, xids))})")
    contained = f"({' AND '.join(['tx_offset > 0', f'tx_offset <= {snapshot.lsn:d}', *seen])})"
    if snapshot.incarnation == 1:
        return contained
    return f"(tx_offset > 0 AND tx_offset <= {snapshot.starts_after:d} OR {contained})"
