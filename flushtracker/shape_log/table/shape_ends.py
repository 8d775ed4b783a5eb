"""``ShapeEnds``: the ends of shapes' logs, for a reader that polls them; the cost of a poll depends on what is new.

A shape is looked up once, by a query. If a follower has read up to a transaction, only the rows from there on, and the
end of the shape's snapshot, are needed. Statistics of files and row groups exclude the rest. After that, the table's
log says which files each version added, and these are read once for all known shapes. Files added by a merge have no
new rows. If a version does more than append transactions (a snapshot, a fold, a deletion), or cannot be read, the
affected shapes are dropped from the cache and looked up again.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeKey, ShapeSnapshot
from flushtracker.wal.log_offset import OP_INFINITY

_MOST_VERSIONS: Final = 100
_MOST_BYTES: Final = 32 << 20
"""A larger file is not read for the known shapes: looking each of them up takes less memory."""

_SNAPSHOT_END: Final = f"tx_offset = 0 AND op_offset = {OP_INFINITY:d}"

_Asked = tuple[str, str | None]
"""A shape, for one source or all."""


class ShapeEnd(NamedTuple):
    """The shape's last complete transaction in the table, and its last snapshot."""

    last_commit: int | None = None
    snapshot: ShapeSnapshot | None = None

    def reached(self, commit: int | None) -> "ShapeEnd":
        return self if commit is None else self._replace(last_commit=max(commit, self.last_commit or 0))


class ShapeEnds:
    """The ends of logs in an open table. Raises ``DeltaError``, ``OSError``, or ``DecodeError`` for a snapshot."""

    def __init__(self, table: DeltaTable, commits: NewCommits) -> None:
        self._table = table
        self._commits = commits
        self._version = table.version()
        self._known: dict[_Asked, dict[str, ShapeEnd]] = {}
        self._snapshots: dict[ShapeKey, ShapeSnapshot] = {}

    def of(self, shape_id: str, source: str | None, read: Position | None = None) -> dict[str, ShapeEnd]:
        """The shape's end by source, in the table's open version; only sources with rows of the shape.

        ``read`` is a position up to which the source's log has been read, so its ``commit`` row exists.
        """
        self._follow(self._table.version())
        of_all = shape_id, None
        asked: _Asked = of_all if of_all in self._known else (shape_id, source)
        if asked not in self._known:
            self._known[asked] = self._look(shape_id, source, read)
        return {name: end for name, end in self._known[asked].items() if source in {None, name}}

    def look_up(self, shape_ids: Collection[str], source: str | None) -> None:
        """Look up the unknown ones of these shapes by one query; with few ids, statistics exclude files."""
        self._follow(self._table.version())
        unknown = {(each, source) for each in shape_ids if (each, None) not in self._known} - self._known.keys()
        if unknown:
            condition = f"shape_id IN ({', '.join(sorted(literal(shape_id) for shape_id, _ in unknown))})"
            found = self._found(condition + _of_source(source))
            self._known |= {asked: found[asked[0]] for asked in unknown}

    def forget(self, kept: Collection[str]) -> None:
        """Drop cached shapes that are not among ``kept``."""
        self._known = {asked: ends for asked, ends in self._known.items() if asked[0] in kept}
        self._snapshots = {key: snapshot for key, snapshot in self._snapshots.items() if key[1] in kept}

    def _look(self, shape_id: str, source: str | None, read: Position | None) -> dict[str, ShapeEnd]:
        condition = f"shape_id = {literal(shape_id)}{_of_source(source)}"
        if read is None:
            return self._found(condition)[shape_id]
        not_read = f"tx_offset >= {max(read.tx_offset, 1):d} OR {_SNAPSHOT_END} OR source <> {literal(read.source)}"
        found = self._found(f"{condition} AND ({not_read})")[shape_id]
        end = found.get(read.source)
        has_read = end is not None and (read.tx_offset == 0 or end.last_commit is not None)
        return found if has_read else self._found(condition)[shape_id]

    def _found(self, condition: str) -> dict[str, dict[str, ShapeEnd]]:
        """By shape, including those without rows, and source: the ends of the rows that satisfy the condition."""
        rows = query_rows(
            self._table,
            f"SELECT shape_id, source, MAX(CASE WHEN operation = {literal(COMMIT)} THEN tx_offset END) AS last, "  # noqa: S608
            f"MAX(CASE WHEN operation = {literal(SNAPSHOT)} THEN chunk END) AS attempt "
            f"FROM rows WHERE {condition} GROUP BY shape_id, source",
        ).to_pylist()
        self._read_snapshots({(row["source"], row["shape_id"]): row["attempt"] for row in rows})
        found = defaultdict[str, dict[str, ShapeEnd]](dict)
        for row in rows:
            snapshot = None if row["attempt"] is None else self._snapshots[row["source"], row["shape_id"]]
            found[row["shape_id"]][row["source"]] = ShapeEnd(row["last"], snapshot)
        return found

    def _read_snapshots(self, attempts: Mapping[ShapeKey, int | None]) -> None:
        """Read those snapshots of these attempts that are not cached."""
        wanted = list[str]()
        for key, attempt in attempts.items():
            known = self._snapshots.get(key)
            if attempt is not None and (known is None or known.attempt != attempt):
                source, shape_id = map(literal, key)
                wanted.append(f"source = {source} AND shape_id = {shape_id} AND chunk = {attempt:d}")
        if wanted:
            condition = f"{_SNAPSHOT_END} AND ({' OR '.join(wanted)})"
            query = f"SELECT source, shape_id, chunk, value FROM rows WHERE {condition}"  # noqa: S608  literals alone
            for row in query_rows(self._table, query).to_pylist():
                key = row["source"], row["shape_id"]
                self._snapshots[key] = ShapeSnapshot.parse(row["chunk"], row["value"])

    def _follow(self, version: int) -> None:
        """Apply the commits up to ``version``; drop cached shapes that they do not cover."""
        if version == self._version:
            return
        added = range(self._version + 1, version + 1)
        self._version = version
        if not 0 < len(added) <= _MOST_VERSIONS:
            self._known.clear()
        try:
            for number in added if self._known else ():
                self._take(number)
        except (DeltaError, OSError, pa.ArrowException, ValueError, LookupError):
            # The version's files may have been deleted since; then only a query can tell the table's content.
            self._known.clear()

    def _take(self, version: int) -> None:
        actions = self._commits.actions(version)
        if any(action["remove"]["dataChange"] for action in actions if "remove" in action):
            self._known.clear()
        for added in [action["add"] for action in actions if "add" in action]:
            if added["dataChange"]:
                self._take_file(added)

    def _take_file(self, added: Mapping[str, Any]) -> None:
        stats = json.loads(added.get("stats") or "{}")
        least, greatest = stats.get("minValues", {}), stats.get("maxValues", {})
        first, last = least.get("shape_id", ""), greatest.get("shape_id")
        asked = [each for each in self._known if first <= each[0] and (last is None or each[0] <= last)]
        if least.get("tx_offset", 0) <= 0 or added["size"] > _MOST_BYTES:
            for each in asked:
                del self._known[each]
        elif asked:
            try:
                commits = self._last_commits(unquote(added["path"]))
            except (DeltaError, OSError, pa.ArrowException, ValueError, LookupError):
                # Only a query can tell what is in it, if its store answers. Other shapes need none.
                for each in asked:
                    del self._known[each]
                return
            for shape_id, only_source in asked:
                ends = self._known[shape_id, only_source]
                for source, tx in commits.get(shape_id, {}).items():
                    if only_source in {None, source}:
                        ends[source] = ends.get(source, ShapeEnd()).reached(tx)

    def _last_commits(self, path: str) -> dict[str, dict[str, int | None]]:
        """For each shape and source in the file, the last transaction that ends in it."""
        content = BytesIO(self._commits.storage.open_input_file(path).read())
        rows = pq.read_table(content, columns=["shape_id", "source", "tx_offset", "operation"])
        ends = pc.if_else(pc.equal(rows["operation"], COMMIT), rows["tx_offset"], None)
        last = rows.set_column(2, "tx_offset", ends).group_by(["shape_id", "source"]).aggregate([("tx_offset", "max")])
        found = defaultdict[str, dict[str, int | None]](dict)
        for row in last.to_pylist():
            found[row["shape_id"]][row["source"]] = row["tx_offset_max"]
        return found


def _of_source(source: str | None) -> str:
    return "" if source is None else f" AND source = {literal(source)}"
