"""The columns of a shape log, and those with statistics; executors import this."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("shape_id", pa.string()),
        ("tx_offset", pa.int64()),
        ("op_offset", pa.int64()),
        ("operation", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("old_value", pa.string()),
        ("xid", pa.int64()),
        ("commit_timestamp", pa.timestamp("us", tz="UTC")),
        ("chunk", pa.int64()),
        ("written_at", pa.timestamp("us", tz="UTC")),
    ]
)
SEARCHED: Final = ("source", "shape_id", "tx_offset", "op_offset")
"""Only these have statistics, because statistics of values would make up most of the table's log."""


def filled_rows(columns: Mapping[str, pa.Array], same: Mapping[str, object], count: int) -> pa.Table:
    """A table of ``count`` rows: ``columns``, the values that are the ``same`` in all rows, and nulls."""
    filled = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
        for field in SCHEMA
    ]
    return pa.table(filled, schema=SCHEMA)
