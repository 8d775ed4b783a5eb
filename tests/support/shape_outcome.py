"""What became of a shape: it has ended, or its fold can be compared with its query."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from flushtracker.postgres.connection import rows
from flushtracker.shapes.item_key import key_values, partition_prefix, table_prefix
from tests.support.capture_rig import CaptureRig
from tests.support.fold import fold_items

_COLUMN_NAMES: Final = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('{}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True)
class Outcome:
    """Why a shape has ended, or what its fold and its query have."""

    ended: str | None
    fold: dict[str, Any]
    query: dict[str, Any]

    @property
    def holds(self) -> bool:
        return self.ended is not None or self.fold == self.query


def outcome(
    rig: CaptureRig, shape_id: str, columns: Sequence[str] | None, table: str | None = None, where: str | None = None
) -> Outcome:
    """The outcome of a shape with these columns (``None``: all); its table has its name unless ``table`` is given."""
    name = table or shape_id
    entry = rig.registry()[shape_id]
    if entry.removed_at is not None:
        assert shape_id in rig.removals(), "an ended shape has its removal"
        return Outcome(entry.ended_because or "removed by its owner", {}, {})
    with closing(rig.server.connect()) as session:
        names = [column for (column,) in rows(session, _COLUMN_NAMES.format(name))]
        if not names:
            return Outcome(None, fold_items(rig.items(shape_id)), {"the table": "is gone"})
        wanted = names if columns is None else [column for column in names if column in columns]
        texts = ", ".join(["tableoid::bigint", *(f"{column}::text" for column in wanted)])
        found = rows(session, f"SELECT {texts} FROM {name} WHERE {where or True}")  # noqa: S608  the test's own names
    query = {}
    has_partitions = entry.definition.keys_have_partitions
    for oid, *row in found:
        value = dict(zip(wanted, row, strict=True))
        prefix = partition_prefix(("public", name), oid) if has_partitions else table_prefix(("public", name))
        query[prefix + key_values([value["id"]])] = {column: text for column, text in value.items() if text is not None}
    return Outcome(None, fold_items(rig.items(shape_id)), query)
