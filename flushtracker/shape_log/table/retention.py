"""``Retention``: folds the logs of shapes up to the horizon, the start of the history to keep.

One commit adds the rows at the horizon and the row that ends them, and removes what they replace: each transaction up
to the horizon, except the last one's ``commit`` row, and earlier snapshots. It is marked as a data change. So every
version of the table has the log either before or after the fold, and a crash leaves only unreferenced files.

A fold is made from one version of the table. Appends may continue, because a writer only appends after the last row of
a shape. If another fold or snapshot was added since, the commit is refused
(:mod:`flushtracker.shape_log.table.snapshots`). In the same way, a snapshot that began before the fold is refused if it
does not contain everything folded.

The log of a shape without its snapshot is kept, and so is one that changes rows that it has not inserted.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta.storage import literal, query_batches, query_rows
from flushtracker.errors import DecodeError
from flushtracker.events.registry import Registry
from flushtracker.shape_log.horizon import OldLog, last_xid
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeKey, ShapeSnapshot
from flushtracker.shape_log.table.columns import filled_rows
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.files import LogFile, LogFiles
from flushtracker.shape_log.table.fold_items import ROW_ORDER
from flushtracker.shape_log.table.folded_shape import folded_rows
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.snapshots import LastSnapshots, last_snapshots
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

logger = logging.getLogger(__name__)

_LONGEST_PERIOD: Final = timedelta(hours=1)
_PERIODS: Final = 10
_MOST_ROWS: Final = 2_000_000
"""The most rows, of several shapes, that one commit folds; they are folded again if another process was first."""
_MOST_SHAPES: Final = 10_000
"""The most shapes likewise; halved each time another process was first, so that frequent snapshots cannot block
folds.
"""

_FILE_BYTES: Final = 64 << 20
"""The most bytes of folded rows in one file, uncompressed."""

# Per shape: its horizon, its rows up to there, and its inserts minus deletes among them. Everything after a kept
# transaction is kept, too, even if a clock that was set back gave it an earlier time.
_OLD: Final = """
WITH k AS (
  SELECT source, shape_id, MIN(tx_offset) AS kept FROM rows
  WHERE operation = 'commit' AND written_at > TIMESTAMP '{until}' AND {shapes} GROUP BY source, shape_id
), h AS (
  SELECT c.source, c.shape_id, MAX(c.tx_offset) AS horizon FROM (
    SELECT source, shape_id, tx_offset FROM rows
    WHERE operation = 'commit' AND written_at <= TIMESTAMP '{until}' AND {shapes}
  ) c LEFT JOIN k ON c.source = k.source AND c.shape_id = k.shape_id
  WHERE k.kept IS NULL OR c.tx_offset < k.kept GROUP BY c.source, c.shape_id
), s AS (
  SELECT source, shape_id, MAX(chunk) AS attempt FROM rows
  WHERE tx_offset = 0 AND operation = 'snapshot' AND {shapes} GROUP BY source, shape_id
)
SELECT r.source, r.shape_id, h.horizon, COUNT(*) AS old_rows, SUM(
  CASE WHEN r.operation = 'insert' AND (r.tx_offset > 0 OR r.chunk = s.attempt) THEN 1
       WHEN r.operation = 'delete' THEN -1 ELSE 0 END
) AS live_rows
FROM rows r JOIN h ON r.source = h.source AND r.shape_id = h.shape_id
LEFT JOIN s ON r.source = s.source AND r.shape_id = s.shape_id
WHERE r.tx_offset <= h.horizon GROUP BY r.source, r.shape_id, h.horizon
"""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long the history of shapes is kept, ``None`` for ever; ``shapes`` has exceptions by id.

    A fold drops at least ``least_dropped`` rows.
    """

    history: timedelta | None = None
    shapes: Mapping[str, timedelta] = field(default_factory=dict)
    least_dropped: int = 100

    @property
    def period(self) -> timedelta:
        """How often folding is considered; it reads some columns of the whole log."""
        kept = [*self.shapes.values(), *([] if self.history is None else [self.history])]
        return min([_LONGEST_PERIOD, *(each / _PERIODS for each in kept)])

    def conditions(self) -> list[tuple[timedelta, str]]:
        """Each retention time, with the condition for its shapes."""
        found = [(kept, f"shape_id = {literal(shape_id)}") for shape_id, kept in self.shapes.items()]
        if self.history is not None:
            others = ", ".join(map(literal, self.shapes))
            found.append((self.history, f"shape_id NOT IN ({others})" if others else "TRUE"))
        return found


@dataclass(frozen=True, slots=True)
class _Fold:
    """A shape whose log up to ``horizon`` is replaced by ``rows`` rows."""

    key: ShapeKey
    horizon: int
    rows: int


class _FoldFiles:
    """Writes the rows of all folds of a commit into files; a file has several shapes, or part of one."""

    def __init__(self, files: LogFiles, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._held, self._held_bytes = list[pa.Table](), 0
        self._added = list[AddAction]()

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > _FILE_BYTES:
            self._write()

    def written(self) -> list[AddAction]:
        """All files; call this after the last row."""
        self._write()
        return self._added

    def _write(self) -> None:
        if self._held:
            new = pa.concat_tables(self._held)
            columns = [new[f.name] if f.name in new.column_names else pa.nulls(len(new), f.type) for f in self._schema]
            rows = pa.table(columns, names=self._schema.names)
            self._added.append(self._files.write(rows, None, is_change=True))
            self._held, self._held_bytes = [], 0


class Retention:
    """Folds what is due in one open shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, files: LogFiles, retain: RetentionPolicy) -> None:
        self._table, self._files, self._retain = table, files, retain
        self._next: datetime | None = None
        self._kept = set[ShapeKey]()
        self._most_shapes = _MOST_SHAPES

    def run(self, now: datetime, registry: Registry) -> tuple[int, int]:
        """Fold what is due at ``now``; returns the number of shapes, and by how many rows their logs are shorter."""
        if self._next is not None and now < self._next:
            return 0, 0
        files = self._files.current()
        snapshots = last_snapshots(self._table)
        new = _FoldFiles(self._files, pa.schema(self._table.schema()))
        folds, dropped, rows = list[_Fold](), 0, 0
        is_complete = True
        for key, old in self._due(now, registry, snapshots):
            if folds and (rows + old.old_rows > _MOST_ROWS or len(folds) == self._most_shapes):
                is_complete = False
                break
            made = self._fold(key, old, snapshots.get(key), new)
            if made is not None:
                folds.append(made)
                rows += old.old_rows
                dropped += old.old_rows - made.rows - 1
        if folds and not self._replace(files, folds, new.written()):
            logger.info("shapes not folded: another process was first uri=%s", self._table.table_uri)
            self._most_shapes = max(1, len(folds) // 2)
            return 0, 0
        self._most_shapes = min(2 * self._most_shapes, _MOST_SHAPES)
        if is_complete:
            self._next = now + self._retain.period
        return len(folds), dropped

    def _due(self, now: datetime, registry: Registry, snapshots: LastSnapshots) -> list[tuple[ShapeKey, OldLog]]:
        found = list[tuple[ShapeKey, OldLog]]()
        for kept, shapes in self._retain.conditions():
            until = f"{now - kept:%Y-%m-%dT%H:%M:%S.%fZ}"
            for row in query_rows(self._table, _OLD.format(until=until, shapes=shapes)).to_pylist():
                key, snapshot = (row["source"], row["shape_id"]), snapshots.get((row["source"], row["shape_id"]))
                old = OldLog(row["horizon"], row["old_rows"], max(0, row["live_rows"]))
                entry = registry.shape(*key)
                # A shape's beginning is unknown until its entry, and its snapshot, are there.
                has_begin = entry is not None and (snapshot is not None or not entry.definition.snapshot)
                lsn = None if snapshot is None else snapshot.lsn
                is_kept = key in self._kept or key in snapshots.malformed
                if not is_kept and has_begin and old.is_worth_folding(lsn, self._retain.least_dropped):
                    found.append((key, old))
        return found

    def _fold(self, key: ShapeKey, old: OldLog, snapshot: ShapeSnapshot | None, new: _FoldFiles) -> _Fold | None:
        """Write the fold of a shape to ``new`` files; ``None`` if its rows at the horizon cannot be determined."""
        shape = FoundShape(self._table.version(), *key, old.horizon, snapshot, None, None)
        attempt = 1 if snapshot is None else snapshot.attempt + 1
        count = 0
        try:
            # All items are folded before the first row is returned.
            for rows in sort_tables(folded_rows(self._table, shape), ROW_ORDER):
                new.add(_fold_rows(key, attempt, count, rows))
                count += len(rows)
        except DecodeError as error:
            self._keep(key, str(error))
            return None
        xids = self._xids(f"{shape.condition} AND operation = {literal(COMMIT)} AND tx_offset <= {old.horizon:d}")
        folded_xid = last_xid(xids, None if snapshot is None else snapshot.folded_xid)
        end = ShapeSnapshot.fold(attempt, old.horizon, folded_xid, snapshot)
        new.add(_end_row(key, end))
        return _Fold(key, old.horizon, count + 1)

    def _xids(self, condition: str) -> Iterator[int]:
        """The xids of the rows, in transaction order."""
        query = f"SELECT tx_offset, xid FROM rows WHERE {condition}"  # noqa: S608  no user's values but literals
        for rows in sort_tables(query_batches(self._table, query), ["tx_offset"]):
            yield from rows["xid"].to_pylist()

    def _keep(self, key: ShapeKey, reason: str) -> None:
        self._kept.add(key)
        logger.warning("log of a shape is not folded source=%s shape_id=%s: %s", *key, reason)

    def _replace(self, files: Sequence[LogFile], folds: Sequence[_Fold], new: Sequence[AddAction]) -> bool:
        """Commit the folds; false if another process has replaced a file, or added a snapshot or fold, first."""
        token = self._files.next_snapshot()
        shape_ids = {each.key[1] for each in folds}
        greatest = max(each.horizon for each in folds)
        replaced, added = list[LogFile](), [*new]
        for file in files:
            if not file.may_have(shape_ids) or (file.first_tx is not None and file.first_tx > greatest):
                continue
            kept = self._files.rewrite(file, lambda rows: _without(rows, folds))
            if kept is not None:
                replaced.append(file)
                added += kept
        return self._files.replace(replaced, added, is_deletion=True, transaction=token)


def _fold_rows(key: ShapeKey, attempt: int, before: int, rows: pa.Table) -> pa.Table:
    """The inserts of a fold; ``before`` is the number of earlier ones."""
    tx, _ = LogOffset.last_before_real_offsets()
    own = {name: rows[name] for name in ("operation", "key", "value")}
    columns = {"op_offset": pa.array(range(before + 1, before + len(rows) + 1), pa.int64()), **own}
    return _log_rows(key, attempt, tx, columns, len(rows))


def _end_row(key: ShapeKey, end: ShapeSnapshot) -> pa.Table:
    tx, op = LogOffset.last_before_real_offsets()
    columns = {"op_offset": pa.array([op]), "operation": pa.array([SNAPSHOT]), "value": pa.array([end.to_json()])}
    return _log_rows(key, end.attempt, tx, columns, 1)


def _log_rows(key: ShapeKey, attempt: int, tx: int, columns: Mapping[str, pa.Array], count: int) -> pa.Table:
    same = {"source": key[0], "shape_id": key[1], "tx_offset": tx, "xid": 0, "chunk": attempt}
    return filled_rows(columns, same, count)


def _without(rows: pa.Table, folds: Sequence[_Fold]) -> pa.Table:
    """The rows not replaced by the folds."""
    found = set(pc.unique(rows["shape_id"]).to_pylist())
    for made in folds:
        source, shape_id = made.key
        if shape_id not in found:
            continue
        is_its = pc.and_(pc.equal(rows["shape_id"], shape_id), pc.equal(rows["source"], source))
        is_old = pc.and_(is_its, pc.less_equal(rows["tx_offset"], made.horizon))
        is_end = pc.and_(pc.equal(rows["tx_offset"], made.horizon), pc.equal(rows["op_offset"], OP_INFINITY))
        rows = rows.filter(pc.or_(pc.invert(is_old), is_end))
    return rows
