"""A shape's definition, as ``conf/shapes.yaml`` gives it."""

from dataclasses import dataclass
from typing import Literal

from flushtracker.changes import TableName


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
