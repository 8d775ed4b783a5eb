"""What ``sqlite_writer.py`` holds, as ``flushtracker conformance`` wants it: ``python dump_sqlite.py shapes.db``.

With ``--whole``, what its readers may see: whole transactions. The last of a shape may be stored without its end. With
``--rows``, the rows of each shape that has its snapshot.
"""

import json
import sqlite3
import sys

import flushtracker as ft

LOG = "SELECT log.* FROM log JOIN cursors USING (source, shape_id)"
WHOLE = "(log.tx < cursors.tx OR cursors.op = 9223372036854775807)"
ITEMS = f"{LOG} WHERE {WHOLE} AND source = ? AND shape_id = ? ORDER BY log.tx, log.op"
INSERTS = "SELECT 'insert', key, value FROM snapshot_rows WHERE source = ? AND shape_id = ? AND attempt = ?"


def print_log(query: str) -> None:
    """Print each item."""
    for source, shape_id, tx, op, _, operation, key, value in db.execute(query):
        offset = {"tx_offset": tx, "op_offset": op}
        line = {
            "source": source,
            "shape_id": shape_id,
            "offset": offset,
            "operation": operation,
            "key": key,
            "value": json.loads(value),
        }
        print(json.dumps(line))


def print_rows() -> None:
    """Print the rows of each complete snapshot, with all changes that it does not contain."""
    db.execute("BEGIN")  # All of one state of the database, which the writer changes meanwhile.
    for (text,) in db.execute("SELECT complete FROM snapshots WHERE complete IS NOT NULL").fetchall():
        snapshot = ft.SnapshotEvent.from_json(text)
        shape, end = (snapshot.source, snapshot.shape_id), snapshot.end
        items = db.execute(INSERTS, (*shape, snapshot.attempt)).fetchall()
        for _, _, tx, _, xid, operation, key, value in db.execute(ITEMS, shape):
            if end and not end.contained.contains(tx, xid):
                items.append((operation, key, value))
        print(json.dumps({"source": shape[0], "shape_id": shape[1], "rows": ft.fold(items)}))


db = sqlite3.connect(sys.argv[1])
if "--rows" in sys.argv:
    print_rows()
else:
    print_log(f"{LOG} WHERE {WHOLE}" if "--whole" in sys.argv else LOG)
