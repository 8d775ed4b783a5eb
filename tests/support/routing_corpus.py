"""Conditions, rows and what ``where`` makes of them, kept in a file: how the shapes of earlier releases were routed.

``python -m tests.support.routing_corpus`` writes the file, on a PostgreSQL server of its own: only for a new version of
the rules, see :mod:`flushtracker.shapes.routing_version`.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation, Row
from tests.support.random_where import COLUMNS, RandomWhere
from tests.support.where_comparison import WhereComparison, outcome_of

CORPUS: Final = Path(__file__).parents[1] / "recording" / "conditions.json.gz"
_ROWS: Final = 40
_CONDITIONS: Final = 2000
_FIRST_USER_TYPE: Final = 16_384
_NAMES: Final = [name for name, oid in COLUMNS.items() if oid < _FIRST_USER_TYPE]
RELATION: Final = Relation(1, "public", "t", "full", tuple(Column(name, COLUMNS[name]) for name in _NAMES))
"""The columns whose types are built in."""


def outcomes(condition: str, rows: Sequence[Row]) -> str | None:
    """A letter for each row; ``None`` if the condition is refused."""
    try:
        matches = parse_where(condition).bind(RELATION)
    except ShapeError:
        return None
    return "".join(outcome_of(matches, row) for row in rows)


def read_corpus() -> tuple[Sequence[Row], dict[str, str]]:
    """The rows, and the outcomes of each condition."""
    content: dict[str, Any] = json.loads(gzip.decompress(CORPUS.read_bytes()))
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
    return rows, content["conditions"]


def _write() -> None:
    from flushtracker.local.postgres import LocalPostgres  # noqa: PLC0415

    with TemporaryDirectory() as folder, LocalPostgres(Path(folder)) as server:
        Path(folder).chmod(0o755)
        comparison = WhereComparison(server, 15, row_count=_ROWS)
        rows = [{name: row[name] for name in _NAMES} for row in comparison.rows]
        comparison.close()
    generator = RandomWhere(Random(15))  # noqa: S311
    conditions: dict[str, str] = {}
    while len(conditions) < _CONDITIONS:
        condition = generator.condition()
        found = outcomes(condition, rows)
        if found is not None:
            conditions[condition] = found
    content = {"columns": _NAMES, "rows": [list(row.values()) for row in rows], "conditions": conditions}
    CORPUS.write_bytes(gzip.compress(json.dumps(content, ensure_ascii=False).encode(), mtime=0))


if __name__ == "__main__":
    _write()
