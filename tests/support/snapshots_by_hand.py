"""What capture and the snapshot job read of a real server, without either program."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa

from flushtracker.capture.shapes.delayed_shapes import tables_by_shape
from flushtracker.config.postgres_config import TablesConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.events.registry_events import PartitionEntry, ShapeEntry, TableEntry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.snapshot_export import exported_table, primary_server
from flushtracker.shape_log.fold import Item
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.read_ranges import read_function
from flushtracker.shape_log.snapshot.table_reads import read_plan, shape_reads
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import decode

_CHANGES: Final = """
SELECT (lsn - '0/0')::bigint, data FROM pg_logical_slot_get_binary_changes(
  'shapes', NULL, NULL, 'proto_version', '1', 'publication_names', 'shapes'
)
"""


def streamed_fragments(server: LocalPostgres) -> Iterator[TransactionFragment]:
    """What the slot ``shapes`` has that was not read yet."""
    converter = FragmentConverter()
    for _, data in server.execute(_CHANGES):
        yield from converter.handle(decode(bytes(data)))


def resolved(
    server: LocalPostgres, definitions: Sequence[ShapeDefinition]
) -> list[ShapeEntry | TableEntry | PartitionEntry]:
    """The entries of the tables, their partitions and the shapes, as capture makes them."""
    with closing(server.connect()) as connection:
        found = ServerTables(connection, "shapes").resolve(definitions)
        source = f"{primary_server(connection)}/shapes"
    shapes = [
        ShapeEntry(source, replace(each, snapshot=True), tables[0].oid, LogOffset(1, 0), starts_visible=True)
        for each, tables in tables_by_shape(found)
    ]
    tables = [table for _, table in found]
    partitions = [PartitionEntry(source, table.oid, each, 0) for table in tables for each in table.partitions]
    return [*(TableEntry(source, table) for table in tables), *partitions, *shapes]


def snapshot_of(server: LocalPostgres, group: DueTable) -> dict[str, list[Item]]:
    """The items of each shape of a group, as the job reads them."""
    options = SecretOptions(server.options)
    with exported_table(
        *(options, group.source, group.table.table, group.table.oid, group.inner),
        publication="shapes",
        lock_timeout_s=1,
    ) as (connection, exported):
        reads = tuple(shape_reads(entry, group.table, exported, group.inner) for entry in group.shapes)
        plan = read_plan(TablesConfig(options, "shapes"), connection, group.source, exported, 5, reads)
        numbers = pa.RecordBatch.from_pydict({"id": list(range(len(plan.ranges)))})
        rows = [row for batch in read_function(plan)(iter([numbers])) for row in batch.to_pylist()]
    ids = [entry.definition.id for entry in group.shapes]
    return {
        shape_id: [("insert", row["key"], row["value"]) for row in rows if row["shape_id"] == shape_id]
        for shape_id in ids
    }
