"""Compares the rows of a shape, folded from its log, with those that they should be."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Row

_SHOWN = 200


def differences(
    log: ShapeLogReader, shapes: Mapping[str, ShapeDefinition], table_rows: Callable[[ShapeDefinition], list[Row]]
) -> Iterator[tuple[str, int, str | None]]:
    """Each shape, the number of its rows, and how its log differs from ``table_rows``, ``None`` if it does not.

    Raises:
        DecodeError: a log cannot be folded.
        ConfigError: the log has no such shape.
        SinkError: a table cannot be read.
    """
    for shape_id, definition in sorted(shapes.items()):
        expected = table_rows(definition)
        names = list(expected[0]) if expected else []
        found = log.read_rows(shape_id).rows.to_pylist()
        yield shape_id, len(expected), _difference(expected, found, names)


def _difference(expected: list[Row], found: list[Row], names: list[str]) -> str | None:
    wanted = Counter(tuple(row.get(name) for name in names) for row in expected)
    had = Counter(tuple(row.get(name) for name in names) for row in found)
    if not names:
        return f"{len(found)} rows that the table does not have" if found else None
    for what, rows in (("lacks", wanted - had), ("has, and the table does not,", had - wanted)):
        if rows:
            example = dict(zip(names, min(rows, key=repr), strict=True))
            return f"the log {what} {rows.total()} rows, such as {str(example)[:_SHOWN]}"
    return None
