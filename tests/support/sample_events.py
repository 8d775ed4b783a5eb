"""Events of the streams, one of each kind."""

from typing import Any

FRAGMENT: dict[str, Any] = {
    "v": 1,
    "source": "7301/1/shapes",
    "xid": 742,
    "lsn": 23997288,
    "follows": {"tx_offset": 23990008, "op_offset": 2},
    "last_log_offset": {"tx_offset": 23997288, "op_offset": 6},
    "start": False,
    "has_begin": True,
    "commit": {"commit_timestamp": "2026-11-21T01:02:03.456789Z", "end_lsn": 23997400},
    "shapes": [
        {"shape_id": "users-eu", "last_offset": {"tx_offset": 23997288, "op_offset": 5}, "change_count": 3},
        {"shape_id": "orders", "last_offset": None, "change_count": 0},
    ],
}
FLUSH: dict[str, Any] = {
    "v": 1,
    "source": "7301/1/shapes",
    "type": "flushed",
    "shape_id": "users-eu",
    "writer": "log",
    "offset": {"tx_offset": 23997288, "op_offset": 5},
}
CHANGES: dict[str, Any] = {
    "v": 1,
    "source": "7301/1/shapes",
    "shape_id": "users-eu",
    "xid": 742,
    "follows": {"tx_offset": 23990008, "op_offset": 2},
    "start": False,
    "last_log_offset": {"tx_offset": 23997288, "op_offset": 6},
    "has_begin": True,
    "commit": None,
    "items": [
        {
            "offset": {"tx_offset": 23997288, "op_offset": 4},
            "operation": "update",
            "key": '"public"."users"/"7"',
            "value": {"id": "7", "email": None},
            "old_value": {"email": "y"},
        }
    ],
}
