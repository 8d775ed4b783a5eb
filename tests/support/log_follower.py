"""A follower of one shape's log, which keeps the shape's rows and its position as a program of a user would."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flushtracker.errors import PositionError
from flushtracker.shape_log.fold import END_ROWS
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.reader import ShapeLogReader
from tests.support.snapshot_world import Table, apply


@dataclass(eq=False)
class Follower:
    """Begins with the rows, continues with the log, and begins again if it is told to. It keeps its position as text.

    A process of its own for each poll if it is ``short_lived``.
    """

    log: str
    short_lived: bool = False
    shape_id: str = "users"
    table: Table = field(default_factory=dict)
    kept: str | None = None
    polls: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self.reader = ShapeLogReader(self.log)

    @property
    def position(self) -> Position | None:
        return None if self.kept is None else Position.parse(self.kept)

    def poll(self) -> Position:
        """Read what is new, also after a difference; returns the position after it. Raises ``SnapshotMissingError``."""
        reader = ShapeLogReader(self.log) if self.short_lived else self.reader
        try:
            read = reader.read_log(self.shape_id, self.position)
        except PositionError as error:
            assert "read the shape again from its beginning" in str(error)  # noqa: PT017
            self.table, self.kept = {}, None
            self.restarts += 1
            return self.poll()
        fold_strictly(self.table, read.rows.to_pylist())
        before, self.kept = self.position, str(read.position)
        self.polls += 1
        begun = read.position.source, read.position.attempt
        is_difference = before is not None and (before.source, before.attempt) != begun
        return self.poll() if is_difference else read.position


def fold_strictly(table: Table, rows: list[dict[str, Any]]) -> None:
    """Apply rows of a log; raises ``AssertionError`` for a change that cannot follow."""
    for row in rows:
        if row["operation"] not in END_ROWS:
            value = None if row["value"] is None else json.loads(row["value"])
            apply(table, row["operation"], row["key"], value)


def row_texts(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Rows in a form that compares, without columns that are null or absent."""
    return sorted(repr(sorted((name, text) for name, text in row.items() if text is not None)) for row in rows)
