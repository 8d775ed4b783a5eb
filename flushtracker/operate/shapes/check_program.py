"""``flushtracker check``: prints everything wrong with a shapes file, by itself or with a server's catalog."""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from flushtracker.config.libpq_text import parse_options
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.operate.shapes.catalog_check import catalog_problems
from flushtracker.postgres.connection import server_name
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import parts_of, whole_tables
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes_file

_WRONG: Final = 1


def run(arguments: argparse.Namespace) -> int:
    """Print the problems, one per line, then notes, and the number of problems."""
    path: Path = arguments.shapes
    try:
        shapes = read_shapes_file(path)
    except ConfigError as error:
        print(error)
        return _WRONG
    errors, judge = [fault.error for fault in shapes.faults], "no server was asked about tables and columns"
    notes = list(_notes(shapes))
    if arguments.connection is None:
        errors += _where_errors(shapes)
    else:
        options = parse_options(arguments.connection)
        found, more = catalog_problems(options, arguments.publication, shapes.definitions)
        errors, notes = errors + found, notes + more
        judge = f"by the catalog of PostgreSQL at {server_name(options)}"
    for each in (*errors, *notes):
        print(each)
    shown = "no problem" if not errors else f"{len(errors)} problem{'s' if len(errors) > 1 else ''}"
    print(f"{path}: {len(shapes.ids)} shape{'' if len(shapes.ids) == 1 else 's'}, {shown} ({judge})")
    return _WRONG if errors else 0


def _notes(shapes: ShapesFile) -> Iterator[str]:
    """Things that are not problems, but cost more than it may seem."""
    for definition in shapes.definitions:
        with suppress(ShapeError):
            for table in whole_tables(definition):
                fact = f"its log has a copy of all rows of {'.'.join(table)}; say more beside the subquery, or in it"
                yield f"note: {definition.subject('where')}: {fact}"


def _where_errors(shapes: ShapesFile) -> list[FlushtrackerError]:
    errors: list[FlushtrackerError] = []
    for definition in shapes.definitions:
        try:
            for part in parts_of(definition):
                Shape(part)
        except ShapeError as error:  # noqa: PERF203  all of them are wanted
            errors.append(error)
    return errors
