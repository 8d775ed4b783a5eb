"""A shape's definition, as written in ``conf/shapes.yaml``."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Literal

from flushtracker.wal.changes import TableName


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a shape's writer flushes: by bytes, by time, and at the end of each chunk of its log.

    ``None`` is the writer's default; :mod:`flushtracker.shape_log.write_loop` has those of ``flushtracker write``,
    which uses ``bytes`` and ``interval_ms`` only with ``flush: hold``.
    """

    bytes: int | None = None
    interval_ms: int | None = None
    chunk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShapeDefinition:
    """A routed subset of one table's changes.

    ``where`` is plain text here and is checked when it is compiled. Column names are spelled as in PostgreSQL's
    catalog. ``columns`` is ``None`` for all columns, ``primary_key`` is ``None`` for the relation's own key.
    ``partitions`` are the tables whose changes count as changes of ``table``, for use without a catalog.
    ``keys_have_partitions``: each row's key names the partition that it is in, so that the shape can follow when one is
    emptied. It is found in the catalog, and cannot change under an id. ``snapshot``: whether the shape also has the
    rows that its table had before it was added; ``None`` if that is not stated. ``where_at``: the file and the line of
    ``where``, for messages; empty if it does not come from a file.
    """

    id: str
    table: TableName
    columns: tuple[str, ...] | None = None
    where: str | None = None
    replica: Literal["default", "full"] = "default"
    primary_key: tuple[str, ...] | None = None
    partitions: tuple[TableName, ...] = ()
    depends_on: tuple[str, ...] = ()
    flush: FlushPolicy = FlushPolicy()
    keys_have_partitions: bool = False
    snapshot: bool | None = None
    where_at: str = field(default="", compare=False, repr=False)


def dependency_layers(depends_on: Mapping[str, Collection[str]]) -> Mapping[str, int]:
    """The layer of each shape that depends on others: one above the highest layer among them.

    ``depends_on`` has these shapes, each with those that it depends on. All others are in layer 0.

    >>> dependency_layers({"b": ["a"]})
    {'b': 1}

    Raises:
        graphlib.CycleError: the shapes depend on each other in a cycle, which ``load_shapes`` refuses.
    """
    layers: dict[str, int] = {}
    for shape_id in TopologicalSorter(depends_on).static_order():
        if others := depends_on.get(shape_id):
            layers[shape_id] = 1 + max(layers.get(other, 0) for other in others)
    return layers
