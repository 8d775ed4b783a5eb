"""What ``sqlite_writer.py`` holds, as ``flushtracker conformance`` wants it: ``python dump_sqlite.py shapes.db``.

With ``--whole``, what its readers may see: whole transactions. The last of a shape may be stored without its end.
"""

import json
import sqlite3
import sys

EVERYTHING = "SELECT * FROM log"
WHOLE = """SELECT log.* FROM log JOIN cursors USING (source, shape_id)
WHERE log.tx < cursors.tx OR cursors.op = 9223372036854775807"""
QUERY = WHOLE if "--whole" in sys.argv else EVERYTHING

for source, shape_id, tx, op, operation, key, value in sqlite3.connect(sys.argv[1]).execute(QUERY):
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
