"""``FoundShape``: a shape in one version of the shape log, and which of its rows count.

For a shape with a snapshot, these are the snapshot's rows and the transactions that it does not contain.
"""

from dataclasses import dataclass
from typing import Final

from flushtracker.delta.storage import literal
from flushtracker.errors import ConfigError, ShapeEndedError, SnapshotMissingError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset

_XIDS: Final = 2**32
_LOG_ALONE: Final = LogOffset.last_before_real_offsets()


@dataclass(frozen=True, slots=True)
class FoundShape:
    """A shape in one ``version`` of the shape log; ``last_commit``: its last transaction that may be read."""

    version: int
    source: str
    shape_id: str
    last_commit: int | None
    snapshot: ShapeSnapshot | None
    entry: ShapeEntry | None
    table: TableBinding | None

    @property
    def name(self) -> str:
        return f"shape {self.shape_id} of source {self.source}"

    @property
    def condition(self) -> str:
        return f"shape_id = {literal(self.shape_id)} AND source = {literal(self.source)}"

    @property
    def attempt(self) -> int:
        """The attempt that made the shape's snapshot; 0 without one."""
        return 0 if self.snapshot is None else self.snapshot.attempt

    @property
    def bound(self) -> LogOffset | None:
        if self.last_commit is not None:
            return LogOffset.last_of(self.last_commit)
        return None if self.snapshot is None else _LOG_ALONE

    @property
    def columns(self) -> dict[str, ColumnBinding]:
        """The shape's columns in the table's order, as far as the registry knows them."""
        if self.table is None or self.entry is None:
            return {}
        definition = self.entry.definition
        chosen = {*(definition.columns or ()), *(definition.primary_key or self.table.key)}
        return {
            column.name: column for column in self.table.columns if definition.columns is None or column.name in chosen
        }

    def counted(self, after: LogOffset | None = None) -> str:
        """The condition for the shape's rows after ``after`` that count, up to the bound.

        It has only integers, because Spark and DataFusion have different literals for texts.
        """
        conditions = [f"tx_offset <= {-1 if self.bound is None else self.bound.tx_offset}"]
        if self.snapshot is not None:
            attempt = f"tx_offset = 0 AND chunk = {self.snapshot.attempt:d}"
            conditions.append(f"({attempt} OR tx_offset > 0 AND NOT {_contained(self.snapshot)})")
        if after is not None:
            conditions.append(_after(after))
        return " AND ".join(conditions)

    def contained(self, after: LogOffset) -> str:
        """The condition for the rows after ``after`` of transactions that the snapshot contains."""
        return "FALSE" if self.snapshot is None else f"{_contained(self.snapshot)} AND {_after(after)}"

    def require_types(self) -> None:
        """Raise ``ConfigError`` if the types of the shape's columns are not known."""
        if self.table is None:
            raise ConfigError(
                f"the types of {self.name} are not known: there is no registry table with its table; name it with "
                "shapes, or leave out typed"
            )

    def require_snapshot(self) -> None:
        """Raise ``SnapshotMissingError`` if the log lacks the snapshot that the shape begins with."""
        if self.snapshot is None and self.entry is not None and self.entry.definition.snapshot:
            raise SnapshotMissingError(
                f"{self.name} has no snapshot yet of the rows that its table had before; run flushtracker snapshot, or "
                f"read its log alone, after {_LOG_ALONE}"
            )

    def require_inside(self, offset: LogOffset, argument: str) -> None:
        """Raise ``ConfigError`` if the log does not reach ``offset``, or starts after it."""
        starts_after = None if self.entry is None else self.entry.starts_after
        if starts_after is not None and offset < starts_after and offset != _LOG_ALONE:
            raise ConfigError(
                f"{argument} is {offset}, but the log of {self.name} starts after {starts_after}; name that or a later "
                "offset, or none"
            )
        ends = [each for each in (self.bound, starts_after) if each is not None]
        if not ends or offset > max(ends):
            reached = f"only reaches {max(ends)}" if ends else "has no whole transaction yet"
            raise ConfigError(f"{argument} is {offset}, but the log of {self.name} {reached}; read it again later")

    def require_kept(self, after: LogOffset) -> None:
        """Raise ``ConfigError`` if changes after ``after`` are folded."""
        if self.snapshot is not None and self.snapshot.is_fold and after < LogOffset.last_of(self.snapshot.lsn):
            raise ConfigError(
                f"after is {after}, but the log of {self.name} is folded up to its horizon "
                f"{LogOffset.last_of(self.snapshot.lsn)}; read the shape again from its beginning"
            )

    def require_state(self, at: LogOffset, last_commit: int | None) -> None:
        """Raise ``ConfigError`` if the state at ``at``, after ``last_commit``, is unknown; the newest never is.

        States before the moment of the snapshot are not known: its rows contain later transactions. Those before the
        horizon of a fold are gone.
        """
        if self.snapshot is None:
            return
        horizon = LogOffset.last_of(self.snapshot.lsn)
        # The items that tell whether the horizon's transaction had ended there are folded.
        if self.snapshot.is_fold and at < horizon:
            raise ConfigError(
                f"at is {at}, but the log of {self.name} is folded up to its horizon {horizon}; name that or a later "
                "offset, or none"
            )
        if at.tx_offset < self.snapshot.lsn and last_commit != self.last_commit:
            raise ConfigError(
                f"at is {at}, but the snapshot of {self.name} has later transactions too; name "
                f"{LogOffset.last_of(self.snapshot.lsn)} or a later offset, or none"
            )


def require_readable(entry: ShapeEntry, *, even_if_ended: bool, has_log: bool) -> None:
    """Raise ``ShapeEndedError`` for a shape that is no longer written, unless the caller allows that."""
    how = "was removed by its owner" if entry.ended_because is None else f"has ended because {entry.ended_because}"
    what = f"shape {entry.definition.id} of source {entry.source} {how}, at {entry.removed_at}"
    if not has_log:
        raise ShapeEndedError(f"{what}, and its log has no rows (any more)")
    if not even_if_ended:
        raise ShapeEndedError(f"{what}; its log is still there; even_if_ended reads it")


def _contained(snapshot: ShapeSnapshot) -> str:
    """``ShapeSnapshot.contains`` as SQL."""
    xmax, running = snapshot.visible.xmax, sorted(snapshot.unseen)
    seen = f"(xid - {xmax % _XIDS:d} + {_XIDS}) % {_XIDS} >= {snapshot.next_xid - xmax:d}"
    if running:
        seen += f" AND xid NOT IN ({', '.join(map(str, running))})"
    return f"(tx_offset > 0 AND tx_offset <= {snapshot.lsn:d} AND {seen})"


def _after(offset: LogOffset) -> str:
    tx, op = offset
    return f"tx_offset >= {tx:d} AND (tx_offset > {tx:d} OR op_offset > {op:d})"
