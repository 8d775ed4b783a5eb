"""A shape's definition, as ``conf/shapes.yaml`` gives it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from flushtracker.wal.changes import TableName


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When a shape's writer flushes: by bytes, by time, and in chunks within a transaction; ``None``: not by this."""

    bytes: int | None = None
    interval_ms: int | None = None
    chunk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShapeDefinition:
    """A routed subset of one table's changes.

    ``where`` is text here; what it means and whether it is supported is decided when it is compiled. Column names are
    spelled as in PostgreSQL's catalog. ``columns`` is ``None`` for all of them, ``primary_key`` for the relation's own.
    ``partitions`` are the tables whose changes belong to ``table``, where no catalog can be asked.
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


def dependency_layers(definitions: Iterable[ShapeDefinition]) -> Mapping[str, int]:
    """The layer of each shape that has something to wait for: one above the highest it depends on.

    Shapes that are not named are in layer 0. A dependency on a shape that is not there counts for nothing.

    >>> table = ("public", "t")
    >>> dependency_layers([ShapeDefinition("a", table), ShapeDefinition("b", table, depends_on=("a",))])
    {'b': 1}

    Raises:
        graphlib.CycleError: a shape waits for itself; the file of shapes has been checked for that.
    """
    depends_on = {definition.id: definition.depends_on for definition in definitions}
    layers: dict[str, int] = {}
    for shape_id in TopologicalSorter(depends_on).static_order():
        below = [layers.get(other, 0) for other in depends_on.get(shape_id, ()) if other in depends_on]
        if below:
            layers[shape_id] = 1 + max(below)
    return layers
