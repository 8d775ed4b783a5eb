"""``Retention``: folds the logs of shapes up to the horizon of the history that is kept.

One commit adds the rows at the horizon and the row that ends them, and removes what they replace: each transaction up
to the horizon, except the last one's ``commit`` row, and earlier snapshots. It says that it changes data. So every
version of the table has the log either before the fold or after it, and a crash leaves files that no version names.

A fold is made from one version of the table. Appends may go on, because a writer appends only after the last row of a
shape. Another fold or snapshot may not: the commit is refused if the table has got one since
(:mod:`flushtracker.delta.log.snapshots`). A snapshot that began before the fold is refused, in the same way, if it does
not contain all that is folded.

The log of a shape that has no snapshot yet is kept, and so is one that changes rows that it has not inserted.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from flushtracker.delta.log.files import LogFile, LogFiles
from flushtracker.delta.log.found_shape import FoundShape
from flushtracker.delta.log.snapshots import last_snapshots
from flushtracker.delta.log.table import SCHEMA
from flushtracker.delta.registry_table import Registry
from flushtracker.delta.storage import literal, query_rows
from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import fold
from flushtracker.shape_log.horizon import OldLog, last_xid
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeKey, ShapeSnapshot
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

logger = logging.getLogger(__name__)

_LONGEST_PERIOD: Final = timedelta(hours=1)
_PERIODS: Final = 10
_MOST_ROWS: Final = 2_000_000
"""Rows that one commit folds, and one shape may have: they are held in memory."""

# Per shape: its horizon, the rows up to there, and those of them that insert a row less those that delete one.
_OLD: Final = """
WITH h AS (
  SELECT source, shape_id, MAX(tx_offset) AS horizon FROM rows
  WHERE operation = 'commit' AND commit_timestamp <= TIMESTAMP '{until}' AND {shapes} GROUP BY source, shape_id
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
class Retain:
    """How long the history of shapes is kept: of all, ``None`` for ever, and of single ``shapes`` by id.

    A fold drops at least ``least_dropped`` rows.
    """

    history: timedelta | None = None
    shapes: Mapping[str, timedelta] = field(default_factory=dict)
    least_dropped: int = 100

    @property
    def period(self) -> timedelta:
        """How often folding is considered, which reads some columns of the whole log."""
        kept = [*self.shapes.values(), *([] if self.history is None else [self.history])]
        return min([_LONGEST_PERIOD, *(each / _PERIODS for each in kept)])

    def conditions(self) -> list[tuple[timedelta, str]]:
        """Each time that history is kept, with the condition for its shapes."""
        found = [(kept, f"shape_id = {literal(shape_id)}") for shape_id, kept in self.shapes.items()]
        if self.history is not None:
            others = ", ".join(map(literal, self.shapes))
            found.append((self.history, f"shape_id NOT IN ({others})" if others else "TRUE"))
        return found


@dataclass(frozen=True, slots=True)
class _Fold:
    """A shape, with the rows that replace its log up to ``horizon``."""

    key: ShapeKey
    horizon: int
    rows: pa.Table


class Retention:
    """Folds what is due in one open shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, files: LogFiles, retain: Retain) -> None:
        self._table, self._files, self._retain = table, files, retain
        self._next: datetime | None = None
        self._kept = set[ShapeKey]()

    def run(self, now: datetime, registry: Registry) -> tuple[int, int]:
        """Fold what is due at ``now``; returns the number of shapes, and by how many rows their logs are shorter.

        Raises:
            DecodeError: a snapshot is malformed.
        """
        if self._next is not None and now < self._next:
            return 0, 0
        files = self._files.current()
        snapshots = last_snapshots(self._table)
        folds, dropped, rows = list[_Fold](), 0, 0
        is_complete = True
        for key, old in self._due(now, registry, snapshots):
            if folds and rows + old.old_rows > _MOST_ROWS:
                is_complete = False
                break
            made = self._fold(key, old, snapshots.get(key))
            if made is not None:
                folds.append(made)
                rows += old.old_rows
                dropped += old.old_rows - len(made.rows) - 1
        if folds and not self._replace(files, folds):
            logger.info("shapes not folded: another process was first uri=%s", self._table.table_uri)
            return 0, 0
        if is_complete:
            self._next = now + self._retain.period
        return len(folds), dropped

    def _due(
        self, now: datetime, registry: Registry, snapshots: Mapping[ShapeKey, ShapeSnapshot]
    ) -> list[tuple[ShapeKey, OldLog]]:
        found = list[tuple[ShapeKey, OldLog]]()
        for kept, shapes in self._retain.conditions():
            until = f"{now - kept:%Y-%m-%dT%H:%M:%S.%fZ}"
            for row in query_rows(self._table, _OLD.format(until=until, shapes=shapes)).to_pylist():
                key, snapshot = (row["source"], row["shape_id"]), snapshots.get((row["source"], row["shape_id"]))
                old = OldLog(row["horizon"], row["old_rows"], max(0, row["live_rows"]))
                entry = registry.shape(*key)
                # What a shape begins with is unknown before its entry, and its snapshot, are there.
                has_begin = entry is not None and (snapshot is not None or not entry.definition.snapshot)
                lsn = None if snapshot is None else snapshot.lsn
                if key not in self._kept and has_begin and old.is_worth_folding(lsn, self._retain.least_dropped):
                    found.append((key, old))
        return found

    def _fold(self, key: ShapeKey, old: OldLog, snapshot: ShapeSnapshot | None) -> _Fold | None:
        """The fold of a shape; ``None`` if its rows at the horizon cannot be known, or are too many."""
        if old.old_rows > _MOST_ROWS:
            self._keep(key, f"it has {old.old_rows:,} rows up to its horizon, of which {_MOST_ROWS:,} can be folded")
            return None
        shape = FoundShape(self._table.version(), *key, old.horizon, snapshot, None, None)
        try:
            rows = fold(self._items(shape))
        except DecodeError as error:
            self._keep(key, str(error))
            return None
        commits = self._query(
            "xid",
            f"{shape.condition} AND operation = {literal(COMMIT)} AND tx_offset <= {old.horizon:d} ORDER BY tx_offset",
        )
        before = None if snapshot is None else snapshot.folded_xid
        attempt = 1 if snapshot is None else snapshot.attempt + 1
        end = ShapeSnapshot.fold(attempt, old.horizon, last_xid(commits["xid"].to_pylist(), before))
        return _Fold(key, old.horizon, _fold_rows(key, rows, end))

    def _keep(self, key: ShapeKey, reason: str) -> None:
        self._kept.add(key)
        logger.warning("log of a shape is not folded source=%s shape_id=%s: %s", *key, reason)

    def _items(self, shape: FoundShape) -> list[tuple[str, str | None, str | None]]:
        where = f"{shape.condition} AND {shape.counted()} AND operation <> {literal(COMMIT)}"
        found = self._query("operation, key, value", f"{where} ORDER BY tx_offset, op_offset")
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def _query(self, names: str, condition: str) -> pa.Table:
        return query_rows(self._table, f"SELECT {names} FROM rows WHERE {condition}")  # noqa: S608  no user's values

    def _replace(self, files: Sequence[LogFile], folds: Sequence[_Fold]) -> bool:
        """Commit the folds; false if another process has replaced a file, or has added a snapshot or a fold, first."""
        token = self._files.next_snapshot()
        shape_ids = {each.key[1] for each in folds}
        greatest = max(each.horizon for each in folds)
        replaced, added = list[LogFile](), list[AddAction]()
        for file in files:
            if not file.may_have(shape_ids) or (file.first_tx is not None and file.first_tx > greatest):
                continue
            rows = self._files.read(file.path)
            kept = _without(rows, folds)
            if len(kept) < len(rows):
                replaced.append(file)
                added += [self._files.write(kept, file.part, is_change=True)] if len(kept) else []
        schema = pa.schema(self._table.schema())
        new = pa.concat_tables([each.rows for each in folds])
        columns = [new[f.name] if f.name in new.column_names else pa.nulls(len(new), f.type) for f in schema]
        added.append(self._files.write(pa.table(columns, names=schema.names), None, is_change=True))
        return self._files.replace(replaced, added, is_deletion=True, transaction=token)


def _fold_rows(key: ShapeKey, rows: Mapping[str, dict[str, str | None]], end: ShapeSnapshot) -> pa.Table:
    """The rows of a fold, with the row that ends it."""
    count = len(rows) + 1
    tx, last_op = LogOffset.last_before_real_offsets()
    values = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows.values()]
    columns = {
        "source": [key[0]] * count,
        "shape_id": [key[1]] * count,
        "tx_offset": [tx] * count,
        "op_offset": [*range(1, count), last_op],
        "operation": [*["insert"] * len(rows), SNAPSHOT],
        "key": [*rows, None],
        "value": [*values, end.to_json()],
        "xid": [0] * count,
        "chunk": [end.attempt] * count,
    }
    return pa.table(
        [pa.array(columns.get(column.name, [None] * count), column.type) for column in SCHEMA], schema=SCHEMA
    )


def _without(rows: pa.Table, folds: Sequence[_Fold]) -> pa.Table:
    """The rows that the folds do not replace."""
    first, last = pc.min(rows["shape_id"]).as_py(), pc.max(rows["shape_id"]).as_py()
    for made in folds:
        source, shape_id = made.key
        if not len(rows) or not first <= shape_id <= last:
            continue
        is_its = pc.and_(pc.equal(rows["shape_id"], shape_id), pc.equal(rows["source"], source))
        is_old = pc.and_(is_its, pc.less_equal(rows["tx_offset"], made.horizon))
        is_end = pc.and_(pc.equal(rows["tx_offset"], made.horizon), pc.equal(rows["op_offset"], OP_INFINITY))
        rows = rows.filter(pc.or_(pc.invert(is_old), is_end))
    return rows
