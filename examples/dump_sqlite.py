"""What ``sqlite_writer.py`` holds, as ``flushtracker conformance`` wants it: ``python dump_sqlite.py shapes.db``."""

import json
import sqlite3
import sys

for source, shape_id, tx, op, operation, key, value in sqlite3.connect(sys.argv[1]).execute("SELECT * FROM log"):
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
