"""``flushtracker shapes``: lists the shapes of a shape log."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from flushtracker.config.units import seconds_text
from flushtracker.errors import printable
from flushtracker.operate.read import log_reader
from flushtracker.shape_log.table.listed_shapes import ListedShape, list_shapes

_HEADER: Final = ("shape", "table", "state", "rows", "up to", "last change", "lag", "writer")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each shape, and below them why some cannot be read."""
    shapes = list_shapes(log_reader(arguments), with_removed=arguments.all)
    if arguments.format == "jsonl":
        for each in shapes:
            sys.stdout.write(json.dumps(asdict(each), default=str, ensure_ascii=False) + "\n")
        return 0
    for line in _lines(list(shapes)):
        sys.stdout.write(f"{line}\n")
    return 0


def _lines(shapes: Sequence[ListedShape]) -> Iterator[str]:
    has_sources = len({each.source for each in shapes}) > 1
    header = (*_HEADER, "source") if has_sources else _HEADER
    cells = [header, *((*_cells(each), each.source) if has_sources else _cells(each) for each in shapes)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    for each in shapes:
        if each.reason:
            yield printable(f"{each.shape_id}: {each.state}: {each.reason}")
    if not shapes:
        yield "no shape is registered"


def _cells(shape: ListedShape) -> tuple[str, ...]:
    changed = shape.committed_at
    return (
        printable(shape.shape_id),
        printable(shape.table) or "-",
        shape.state,
        "-" if shape.rows is None else f"{shape.rows:,}",
        shape.lsn or "-",
        "-" if changed is None else changed.isoformat(" ", "seconds").replace("+00:00", "Z"),
        "-" if shape.lag_s is None else seconds_text(shape.lag_s),
        printable(shape.writer),
    )
