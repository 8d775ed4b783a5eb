"""Judges the shapes of a history: each equals its query, or has ended properly, and not without need."""

from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import FlushtrackerError, PostgresError
from flushtracker.events.registry_events import PartitionEntry, ShapeEntry, TableEntry, bound_now, parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.snapshot_export import exported_table
from flushtracker.shape_log.shape_chain import chain_position, cursor_after
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.item_key import key_values, partition_prefix, table_prefix
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_rig import CaptureRig
from tests.support.fold import fold_items
from tests.support.schema_statements import LISTED, PART, SELECTING, WHERE, Change, Kind
from tests.support.topic_tails import TopicTails

_LOCK_TIMEOUT_S: Final = 0.1
_COLUMNS: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass('public.{}') AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""


@dataclass
class PlayedShape:
    """A shape on ``table`` or a part of it, the rows that it begins with, and what was changed since it was added.

    ``first`` are the rows of its table when it was added, and with ``has_snapshot`` those of its ``snapshot``.
    """

    id: str
    table: str
    kind: Kind
    has_snapshot: bool
    first: dict[str, dict[str, str]] | None = None
    snapshot: ShapeSnapshot | None = None
    begins_unseen: bool = False
    """Whether it was added before a transaction ended that seemed to delay it: its ``first`` may be later rows."""
    changes: list[Change] = field(default_factory=list)
    is_removed: bool = False
    items_at_change: int | None = None
    saw_rows_after_change: bool = False
    counted_changes: int = 0
    """How many of the changes it is known to have survived, or to have ended after."""

    @property
    def on(self) -> str:
        """The table that it is on."""
        return self.table + PART.get(self.kind, "")

    @property
    def must_live(self) -> bool:
        """Whether it has survived until now only what it must survive."""
        if any(self.kind not in change.keeps for change in self.changes):
            return False
        is_altered = any(each.alters_column for each in self.changes)
        # Capture may get rows from before both after both, and then could not tell that no names were exchanged.
        if is_altered and any(each.reorders_columns for each in self.changes):
            return False
        # A column that is new or altered together with new files, between two looks at the catalog, may have other
        # values in old rows.
        if not any(each.truncates for each in self.changes):
            return True
        return not is_altered and (self.kind in SELECTING or not any(each.adds_column for each in self.changes))


class SchemaJudge:
    """Reads what capture has published, and compares it with the tables; close it when done."""

    def __init__(self, rig: CaptureRig) -> None:
        topics = rig.topics
        self._roles = {topic: role for role, topic in topics.items() if role in _READERS}
        self._tails = TopicTails(rig.settings["kafka"]["bootstrap_servers"], list(self._roles))
        self._session = rig.server.connect(application_name="judge")
        # As capture and snapshots have it: a name of another object, as a value, depends on it.
        rows(self._session, "SET search_path = pg_catalog, pg_temp")
        self.entries: dict[str, ShapeEntry] = {}
        self.published_lsn = 0
        self._removals: set[str] = set()
        self._publication = rig.settings["capture"]["publication"]
        self._options = rig.server.options
        self._tables: dict[tuple[str, int], TableBinding] = {}
        self._partitions: dict[tuple[str, int], dict[int, PartitionEntry]] = {}
        self._items: dict[str, dict[LogOffset, LogItem]] = {}
        self._xids: dict[str, dict[int, int]] = {}
        self._resent: dict[str, str] = {}
        self._cursors: dict[tuple[str, str], LogOffset] = {}

    def read(self) -> None:
        """Read what was published since."""
        for topic, values in self._tails.read().items():
            for value in values:
                _READERS[self._roles[topic]](self, value)

    def rows_of(self, shape: PlayedShape, session: Connection | None = None) -> dict[str, dict[str, str]]:
        """The shape's query: its rows by key. Raises ``PostgresError`` if its table, a column or the key is gone."""
        session = session or self._session
        columns = [name for (name,) in rows(session, _COLUMNS.format(shape.on))]
        key = self.entries[shape.id].definition.primary_key or ()
        listed = LISTED if shape.kind in SELECTING else columns
        missing = [name for name in (*key, *listed) if name not in columns]
        if missing or not columns:
            raise PostgresError(f"there is no {missing or shape.on}")
        chosen = [name for name in columns if name in listed or name in key]
        has_partitions = self.entries[shape.id].definition.keys_have_partitions
        texts = ", ".join(["tableoid::bigint", *(f"{name}::text" for name in chosen)])
        where = f" WHERE {WHERE[shape.kind]}" if shape.kind in WHERE else ""
        found = {}
        table = ("public", shape.on)
        for oid, *row in rows(session, f"SELECT {texts} FROM public.{shape.on}{where}"):  # noqa: S608  own names
            value = dict(zip(chosen, row, strict=True))
            prefix = partition_prefix(table, oid) if has_partitions else table_prefix(table)
            text = prefix + key_values([value[name] for name in key])
            if text in found:
                raise PostgresError(f"two rows have the key {text}")
            found[text] = {name: text for name, text in value.items() if text is not None}
        return found

    def take_snapshot(self, shape: PlayedShape) -> None:
        """Take the shape's snapshot as the snapshots' job does, if that would, and once its start is visible."""
        entry = self.entries[shape.id]
        name = entry.source, entry.table_oid
        bound = self._tables.get(name)
        if shape.snapshot is not None or not entry.starts_visible or entry.removed_at is not None or bound is None:
            return
        definition = entry.definition
        table = exported_table(
            self._options,
            entry.source,
            definition.table,
            entry.table_oid,
            publication=self._publication,
            lock_timeout_s=_LOCK_TIMEOUT_S,
        )
        try:
            with table as (session, exported):
                bound = bound_now(bound, self._partitions.get(name, {}).values())
                used = Shape(definition).used_columns
                if reason_to_end(used, bound, exported.binding, definition.primary_key) is None:
                    shape.first = self.rows_of(shape, session)
                    shape.snapshot = ShapeSnapshot(0, exported.visible, exported.lsn, exported.next_xid)
        except FlushtrackerError:
            return

    def problem(self, shape: PlayedShape, log: str) -> str | None:
        """What is wrong with the shape; ``None`` if nothing is."""
        entry, items = self.entries[shape.id], self._items.get(shape.id, {})
        if shape.id in self._resent:
            return self._resent[shape.id]
        if any(offset.tx_offset <= entry.starts_after.tx_offset for offset in items):
            return f"has items from before it starts, after {entry.starts_after}"
        if entry.removed_at is not None:
            return self._end_problem(shape, entry, max(items, default=entry.removed_at), log)
        return self._fold_problem(shape, entry, items)

    def _fold_problem(self, shape: PlayedShape, entry: ShapeEntry, items: dict[LogOffset, LogItem]) -> str | None:
        try:
            query = self.rows_of(shape)
        except PostgresError as error:
            return f"is live, but {error}"
        if shape.has_snapshot and shape.snapshot is None:
            return "has no snapshot" if entry.starts_visible else "has a start that does not become visible"
        if shape.begins_unseen and not shape.has_snapshot:
            return None
        try:
            fold = fold_items([items[offset] for offset in sorted(items) if self._follows(shape, offset)], shape.first)
        except AssertionError as error:
            return f"cannot be folded: {error}"
        return None if fold == query else f"differs: {_difference(fold, query)}"

    def _follows(self, shape: PlayedShape, offset: LogOffset) -> bool:
        """Whether a reader applies the item to the rows that the shape begins with."""
        if shape.snapshot is None:
            return True
        return not shape.snapshot.contains(offset.tx_offset, self._xids[shape.id][offset.tx_offset])

    def note(self, shape: PlayedShape, *, changes_schema: bool) -> None:
        """Note how many items a live shape has, for :attr:`PlayedShape.saw_rows_after_change`."""
        count = len(self._items.get(shape.id, {}))
        if changes_schema:
            shape.items_at_change = count
        elif shape.items_at_change is not None and count > shape.items_at_change:
            shape.saw_rows_after_change = True

    def close(self) -> None:
        self._tails.close()
        self._session.close()

    def _end_problem(self, shape: PlayedShape, entry: ShapeEntry, last: LogOffset, log: str) -> str | None:
        if entry.removed_at is not None and last > entry.removed_at:
            return f"has an item at {last}, but was removed at {entry.removed_at}"
        if shape.id not in self._removals:
            return "has ended without a notification"
        if shape.is_removed or entry.ended_because is None:
            return None if shape.is_removed else "was removed, but not by its owner"
        if f"shape ended shape_id={shape.id} reason=" not in log:
            return "has ended without a line in the log"
        if not shape.must_live:
            return None
        changes = "; ".join(statement for change in shape.changes for statement in change.statements)
        return f"has ended without need: {entry.ended_because}, after {changes}"

    def _take_fragment(self, value: bytes) -> None:
        self.published_lsn = max(self.published_lsn, FragmentEvent.from_json(value).lsn)

    def _take_changes(self, value: bytes) -> None:
        event = ShapeChangesEvent.from_json(value)
        shape = event.source, event.shape_id
        position = chain_position(event, self._cursors.get(shape))
        if position == "gap":
            self._resent[event.shape_id] = f"has a gap before {event.last_log_offset}, which follows {event.follows}"
        elif position == "next":
            self._cursors[shape] = cursor_after(event)
        if event.xid is not None:
            self._xids.setdefault(event.shape_id, {})[event.last_log_offset.tx_offset] = event.xid
        known = self._items.setdefault(event.shape_id, {})
        for item in event.items:
            if known.setdefault(item.offset, item) != item:
                self._resent[event.shape_id] = f"first got {known[item.offset]}, and then {item}"

    def _take_flush(self, value: bytes) -> None:
        event = FlushNotification.from_json(value)
        if event.type == "removed":
            self._removals.add(event.shape_id)

    def _take_entry(self, value: bytes) -> None:
        entry = parse_registry_entry(value)
        if isinstance(entry, ShapeEntry):
            self.entries[entry.definition.id] = entry
        elif isinstance(entry, TableEntry):
            self._tables[entry.source, entry.binding.oid] = entry.binding
        elif isinstance(entry, PartitionEntry):
            self._partitions.setdefault((entry.source, entry.table_oid), {})[entry.binding.oid] = entry


_READERS: Final = {
    "fragments": SchemaJudge._take_fragment,
    "shape_changes": SchemaJudge._take_changes,
    "flushes": SchemaJudge._take_flush,
    "shapes": SchemaJudge._take_entry,
}


def _difference(fold: dict[str, dict[str, str]], query: dict[str, dict[str, str]]) -> str:
    keys = sorted(key for key in {*fold, *query} if fold.get(key) != query.get(key))
    return "; ".join(f"{key}: folded {fold.get(key)!s:.200}, in the table {query.get(key)!s:.200}" for key in keys[:4])
