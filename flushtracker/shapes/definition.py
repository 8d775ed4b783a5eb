"""A shape's definition, as written in ``conf/shapes.yaml``."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from flushtracker.errors import FlushtrackerError
from flushtracker.wal.changes import TableName
from flushtracker.wal.names import LOG_WRITER


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
class DefinitionPlace:
    """A definition's place in a file: the line of the entry, and those of its keys."""

    file: str
    line: int
    keys: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class InnerTable:
    """A table of a shape's subqueries, with its OID and its key as found in the catalog; 0 and empty without a catalog.

    ``keys_have_partitions`` is as in :class:`ShapeDefinition`.
    """

    table: TableName
    table_oid: int
    primary_key: tuple[str, ...]
    keys_have_partitions: bool = False


@dataclass(frozen=True, slots=True)
class ShapeDefinition:
    """A routed subset of one table's changes.

    ``where`` is plain text here and is checked when it is compiled. Column names are spelled as in PostgreSQL's
    catalog. ``columns`` is ``None`` for all columns, ``primary_key`` is ``None`` for the relation's own key.
    ``partitions`` are the tables whose changes count as changes of ``table``, for use without a catalog.
    ``keys_have_partitions``: each row's key names its partition, so that the shape can follow the TRUNCATE of one. It
    is found in the catalog and cannot change under an id. ``snapshot``: whether the shape also has the rows that its
    table had before the shape was added; ``None`` if not stated. ``writer`` is the only program whose notifications say
    how far the shape is durable, ``log`` for ``flushtracker write``. ``incarnation`` numbers the shapes with the same
    id; the next one starts from the table's rows and may have another definition. ``inner_tables`` are those of the
    subqueries in ``where``, once found in the catalog; they may include ``table``. ``compared`` is ``None`` except in a
    part of a shape on several tables (:mod:`flushtracker.shapes.shape_parts`), where it has the columns that conditions
    read, and ``mapped`` those whose case conditions map. ``at`` is its place in the shapes file, for messages.
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
    incarnation: int = 1
    writer: str = LOG_WRITER
    inner_tables: tuple[InnerTable, ...] = ()
    compared: frozenset[str] | None = None
    mapped: frozenset[tuple[Literal["lower", "upper"], frozenset[str]]] = frozenset()
    at: DefinitionPlace | None = field(default=None, compare=False, repr=False)

    def subject(self, key: str = "") -> str:
        """The subject of an error about the shape or one of its keys, with file and line if known.

        >>> place = DefinitionPlace("shapes.yaml", line=2, keys={"where": 4})
        >>> ShapeDefinition("eu", ("public", "users"), at=place).subject("where")
        "shapes.yaml line 4: shape 'eu'"
        """
        name = f"shape {self.id!r}"
        return name if self.at is None else f"{self.at.file} line {self.at.keys.get(key, self.at.line)}: {name}"


@dataclass(frozen=True, slots=True)
class ShapeFault:
    """An error in an entry of a shapes file; ``shape_id`` is ``None`` if it cannot be read."""

    shape_id: str | None
    error: FlushtrackerError


def faults_of(shape_id: str | None, error: FlushtrackerError) -> list[ShapeFault]:
    """A shape's error as faults, one for each problem."""
    return [ShapeFault(shape_id, each) for each in (error, *error.also)]


def dependency_cycle(depends_on: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A cycle of shapes, each of which depends on the next, with the first repeated at the end; empty if there is none.

    >>> dependency_cycle({"a": ["b"], "b": ["c"], "c": ["b"]})
    ('b', 'c', 'b')
    """
    try:
        TopologicalSorter(depends_on).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
        start = cycle.index(min(cycle))
        return (*cycle[start:-1], *cycle[:start], cycle[start])
    return ()


def dependency_layers(depends_on: Mapping[str, Collection[str]]) -> Mapping[str, int]:
    """The layer of each shape that depends on others: one above their highest layer.

    ``depends_on`` maps these shapes to those that they depend on. All others are in layer 0.

    >>> dependency_layers({"b": ["a"]})
    {'b': 1}

    Raises:
        graphlib.CycleError: the shapes depend on each other in a cycle; see :func:`dependency_cycle`.
    """
    layers: dict[str, int] = {}
    for shape_id in TopologicalSorter(depends_on).static_order():
        if others := depends_on.get(shape_id):
            layers[shape_id] = 1 + max(layers.get(other, 0) for other in others)
    return layers
