"""``WriterGroup``: the writers of the shapes that share a group of Spark's state, for one micro-batch.

Events of a batch may come in any order; those of a shape are sorted by offset. The result is a :class:`ShapeBatch` for
each shape that an event reached, or whose interval has passed.

A removed shape is kept as long as its changes may arrive. The caller passes the LSN up to which all changes of the
source were processed and none will be published again. Shapes removed at or below it are forgotten, and only that LSN
is kept. A change at or below it of an unknown shape belongs to a forgotten one and is ignored: shapes with changes up
to there are known otherwise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Final, NamedTuple

from flushtracker.errors import StateError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.shape_writer import LogEnd, ShapeWriter
from flushtracker.shape_log.transaction_builder import TransactionBuilder, WriteUnit
from flushtracker.shape_log.write_loop import notifiable
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

_VERSION: Final = b"\x01"
"""Also the version of the hash that divides shapes into groups."""
_START_OVER: Final = "start with a new one and a resend"
_FORGOTTEN: Final = ""
"""Not a shape id. Its record is that of a removed shape, with the LSN up to which shapes are forgotten."""
_LIVE: Final = b",0]"
"""The end of a live shape's record, unless it holds something."""
_COUNT: Final = Struct("<I")
_SIZES: Final = Struct("<II")
"""The lengths of a record's name in UTF-8, and of the record; both follow."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Settings of all writers.

    With ``hold``, each shape keeps its own limits across batches; without, each batch is flushed as a whole. ``ends``
    has the ends of the logs at the start of the job, by source and shape, where the state may be behind.
    """

    write_unit: WriteUnit = "txn_fragment"
    hold: bool = False
    ends: Mapping[tuple[str, str], LogEnd] = field(default_factory=dict)


@dataclass(slots=True)
class ShapeBatch:
    """A batch's effect on a shape's log: ``rows`` are appended, then ``notified`` is sent, if not ``None``.

    ``gap`` describes the first event after a gap. ``begun`` is the later incarnation that began in this batch, to be
    marked in the log before its first rows.
    """

    shape_id: str
    rows: RowColumns = field(default_factory=RowColumns.empty)
    notified: LogOffset | None = None
    is_resend: bool = False
    gap: str | None = None
    begun: int | None = None


class Durable(NamedTuple):
    """The last durable row of a shape, and whether the shape has been removed."""

    offset: LogOffset
    is_removed: bool


class WriterGroup:
    """The writers of one group of a source, from the bytes that :meth:`pack` returned after the previous batch.

    Raises:
        StateError: these bytes are of another version, or cut off.
    """

    def __init__(self, source: str, settings: WriterSettings, packed: bytes | None = None) -> None:
        self.source = source
        self._settings = settings
        self._records = {} if packed is None else _read_records(packed)
        self._writers: dict[str, ShapeWriter] = {}
        forgotten = self._records.pop(_FORGOTTEN, None)
        self.forgotten_lsn = -1 if forgotten is None else self._removed_lsn(forgotten)
        """Changes up to this LSN of unknown shapes are ignored."""
        self.ended: list[str] = []
        """The shapes that entries of the last batch ended."""

    def handle_batch(
        self, changes: Iterable[ChangeColumns], entries: Iterable[ShapeEntry], now_ms: int, taken_lsn: int = -1
    ) -> list[ShapeBatch]:
        """Process a batch's events; ``now_ms`` is the batch's time.

        ``taken_lsn``: all changes up to this LSN were in previous batches and will not be published again.

        Shapes of other writers are ignored, except that a shape of the log ends here when another writer takes it over.
        """
        batches: dict[str, ShapeBatch] = {}
        self.ended = []
        self._forget(taken_lsn)
        self._handle_entries(entries, batches)
        for event in sorted((each for each in changes if each.writer == LOG_WRITER), key=_offset):
            if not self._has(event.shape_id) and event.last_log_offset.tx_offset <= self.forgotten_lsn:
                continue
            # An event may arrive before the entry that announces it.
            self._begin(event.shape_id, event.incarnation, batches)
            writer = self._writer(event.shape_id)
            if not writer.is_removed and event.incarnation == writer.incarnation:
                batch = batches.setdefault(event.shape_id, ShapeBatch(event.shape_id))
                self._take(writer, event, batch, now_ms)
        if self._settings.hold:
            self._advance(batches, now_ms)
        else:
            for shape_id, batch in batches.items():
                batch.rows.extend(self._writer(shape_id).loop.flush())
        for shape_id, batch in batches.items():
            persisted = self._writer(shape_id).loop.last_persisted_offset
            if (len(batch.rows) or batch.is_resend) and persisted > LogOffset.before_all():
                batch.notified = notifiable(persisted)
        return [batch for _, batch in sorted(batches.items())]

    def _handle_entries(self, entries: Iterable[ShapeEntry], batches: dict[str, ShapeBatch]) -> None:
        for entry in entries:
            shape_id = entry.definition.id
            if not self._has(shape_id) and (entry.definition.writer != LOG_WRITER or self._is_of_forgotten(entry)):
                continue
            self._begin(shape_id, entry.definition.incarnation, batches)
            if self._writer(shape_id).handle_entry(entry):
                self.ended.append(shape_id)

    def _has(self, shape_id: str) -> bool:
        return shape_id in self._writers or shape_id in self._records

    def _is_of_forgotten(self, entry: ShapeEntry) -> bool:
        """Whether a late entry is of a forgotten shape; a shape that was added since may start exactly at the LSN."""
        if entry.removed_at is None:
            return entry.starts_after.tx_offset < self.forgotten_lsn
        return entry.removed_at.tx_offset <= self.forgotten_lsn

    def _forget(self, taken_lsn: int) -> None:
        """Forget the shapes removed up to ``taken_lsn``. O(shapes) if the LSN has risen."""
        if taken_lsn <= self.forgotten_lsn:
            return
        self._pack_all()
        self.forgotten_lsn = taken_lsn
        ended = [shape_id for shape_id, record in self._records.items() if not record.endswith(_LIVE)]
        for shape_id in ended:
            if 0 < self._removed_lsn(self._records[shape_id]) <= taken_lsn:
                del self._records[shape_id]

    def _removed_lsn(self, record: bytes) -> int:
        """The LSN at which the shape was removed; 0 if it is live."""
        return ShapeWriter.unpack(record[1:], self._settings.write_unit).removed_lsn or 0

    def _begin(self, shape_id: str, incarnation: int, batches: dict[str, ShapeBatch]) -> None:
        if self._writer(shape_id).begin(incarnation):
            batches.setdefault(shape_id, ShapeBatch(shape_id)).begun = incarnation

    def _take(self, writer: ShapeWriter, event: ChangeColumns, batch: ShapeBatch, now_ms: int) -> None:
        position, rows = writer.handle_changes(event, now_ms)
        batch.rows.extend(rows)
        if position == "resend":
            batch.is_resend = True
        elif position == "gap" and batch.gap is None:
            batch.gap = (
                f"an event up to {event.last_log_offset} follows {event.follows}, but the "
                f"changes that were taken end at {writer.builder.cursor or 'none'}"
            )

    def next_due_ms(self) -> int | None:
        """When the next interval passes, in the batch's time; ``None`` if nothing is held."""
        loops = [self._writer(shape_id).loop for shape_id in self.held_shapes()]
        return min((loop.buffered_since_ms + loop.limits.interval_ms for loop in loops), default=None)

    def _advance(self, batches: dict[str, ShapeBatch], now_ms: int) -> None:
        for shape_id in self.held_shapes():
            rows = self._writer(shape_id).loop.advance(now_ms)
            if len(rows):
                batches.setdefault(shape_id, ShapeBatch(shape_id)).rows.extend(rows)

    def held_shapes(self) -> list[str]:
        self._pack_all()
        return [shape_id for shape_id, record in self._records.items() if record[:1] == b"\x01"]

    def durable(self) -> dict[str, Durable]:
        writers = {shape_id: self._writer(shape_id) for shape_id in self._records}
        return {
            shape_id: Durable(writer.loop.last_persisted_offset, writer.is_removed)
            for shape_id, writer in writers.items()
        }

    def pack(self) -> bytes:
        self._pack_all()
        if self.forgotten_lsn < 0:
            return _VERSION + _pack_records(self._records)
        forgotten = ShapeWriter(TransactionBuilder(self._settings.write_unit), removed_lsn=self.forgotten_lsn)
        return _VERSION + _pack_records({_FORGOTTEN: b"\x00" + forgotten.pack(), **self._records})

    def _writer(self, shape_id: str) -> ShapeWriter:
        writer = self._writers.get(shape_id)
        if writer is None:
            record, unit = self._records.get(shape_id), self._settings.write_unit
            writer = ShapeWriter(TransactionBuilder(unit)) if record is None else ShapeWriter.unpack(record[1:], unit)
            end = self._settings.ends.get((self.source, shape_id))
            if end is not None:
                writer.resume_at(end)
            self._writers[shape_id] = writer
            self._records.setdefault(shape_id, b"")
        return writer

    def _pack_all(self) -> None:
        for shape_id, writer in self._writers.items():
            self._records[shape_id] = (b"\x01" if len(writer.loop.buffer) else b"\x00") + writer.pack()
        self._writers.clear()


def _offset(event: ChangeColumns) -> tuple[LogOffset, LogOffset]:
    return event.last_log_offset, event.follows


def _read_records(packed: bytes) -> dict[str, bytes]:
    """The records of a group's state; raises ``StateError`` on another version."""
    version = packed[: len(_VERSION)]
    if version != _VERSION:
        raise StateError(
            f"the checkpoint's state has version {version.hex() or 'none'}, this job reads version {_VERSION.hex()}; "
            f"use the release that wrote it, or {_START_OVER}"
        )
    return _unpack_records(packed, len(_VERSION))


def _pack_records(records: Mapping[str, bytes]) -> bytes:
    """The records of shapes with their ids, so that one can be read alone; see :func:`_unpack_records`."""
    pieces = [_COUNT.pack(len(records))]
    for name, record in records.items():
        encoded = name.encode("utf-8", "surrogatepass")
        pieces += [_SIZES.pack(len(encoded), len(record)), encoded, record]
    return b"".join(pieces)


def _unpack_records(packed: bytes, start: int) -> dict[str, bytes]:
    """Read the output of :func:`_pack_records`, from ``start`` to the end; raises ``StateError`` if it ends elsewhere.

    >>> _unpack_records(_pack_records({"users": b"12"}), 0)
    {'users': b'12'}
    """
    records: dict[str, bytes] = {}
    end = start
    try:
        (count,) = _COUNT.unpack_from(packed, start)
        end += _COUNT.size
        for _ in range(count):
            name_size, size = _SIZES.unpack_from(packed, end)
            name_start = end + _SIZES.size
            name_end = name_start + name_size
            end = name_end + size
            records[packed[name_start:name_end].decode("utf-8", "surrogatepass")] = packed[name_end:end]
    except (error, UnicodeDecodeError):
        end = -1
    if end != len(packed):
        raise StateError(f"the checkpoint's state is cut off; restore it, or {_START_OVER}")
    return records
