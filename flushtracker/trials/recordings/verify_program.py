"""``flushtracker verify``: compares a shape log with a recording."""

import argparse
import sys

from flushtracker.events.registry_events import TableEntry
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shapes.bound_relation import relations_of
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.trials.recordings.verify import RecordedTables, differences


def run(arguments: argparse.Namespace) -> int:
    """Compare all shapes; returns 1 if any of them differs."""
    shapes = {definition.id: definition for definition in load_shapes(arguments.shapes)}
    log = ShapeLogReader(arguments.log)
    entries = log.finder.refresh().entries.values()
    known = relations_of(entry.binding for entry in entries if isinstance(entry, TableEntry))
    tables = RecordedTables(read_recording(arguments.recording), known)
    count, failed = 0, 0
    for shape_id, rows, difference in differences(log, shapes, tables.rows_of):
        count += rows
        if difference is not None:
            failed += 1
            print(f"shape {shape_id} differs: {difference}")
    if not failed:
        print(f"{len(shapes)} shapes: folding each log gives its query over the table, {count:,} rows in all")
    sys.stdout.flush()
    return 1 if failed else 0
