"""A shape's definition as JSON, as its registry entry has it: complete, with what the catalog has added."""

from typing import Any

from flushtracker.errors import DecodeError
from flushtracker.events.strict_json import (
    incarnation_field,
    incarnation_json,
    integer_field,
    objects_field,
    optional_integer,
    optional_text,
    optional_texts,
    strings_field,
    table_field,
    table_name,
    text_field,
    typed_field,
    writer_field,
    writer_json,
)
from flushtracker.shapes.definition import FlushPolicy, InnerTable, ShapeDefinition


def definition_json(definition: ShapeDefinition) -> dict[str, object]:
    """The definition as JSON; the inverse of :func:`parse_definition`."""
    return {
        "table": definition.table,
        "columns": definition.columns,
        "where": definition.where,
        "replica": definition.replica,
        "primary_key": definition.primary_key,
        "partitions": definition.partitions,
        "depends_on": definition.depends_on,
        "flush": {
            "bytes": definition.flush.bytes,
            "interval_ms": definition.flush.interval_ms,
            "chunk_bytes": definition.flush.chunk_bytes,
        },
        "snapshot": bool(definition.snapshot),
        # Only a shape that was resynced has the key.
        **incarnation_json(definition.incarnation),
        # Only a shape that another program than ``flushtracker write`` writes has the key.
        **writer_json(definition.writer),
        # Only a shape on a partitioned table has the key.
        **({"keys_have_partitions": True} if definition.keys_have_partitions else {}),
        # Only a shape with subqueries has the key.
        **({"inner_tables": list(map(_inner_json, definition.inner_tables))} if definition.inner_tables else {}),
    }


def parse_definition(shape_id: str, fields: dict[str, Any]) -> ShapeDefinition:
    """Parse the definition of a shape; raises ``DecodeError``."""
    replica = text_field(fields, "replica")
    if replica not in {"default", "full"}:
        raise DecodeError(f"replica is {replica!r:.40}, expected 'default' or 'full'")
    flush = typed_field(fields, "flush", dict)
    return ShapeDefinition(
        id=shape_id,
        table=table_field(fields, "table"),
        columns=optional_texts(fields, "columns"),
        where=optional_text(fields, "where"),
        replica="full" if replica == "full" else "default",
        primary_key=optional_texts(fields, "primary_key"),
        partitions=tuple(table_name(names) for names in typed_field(fields, "partitions", list)),
        depends_on=strings_field(fields, "depends_on"),
        flush=FlushPolicy(
            *(optional_integer(flush, name, 1) for name in ("bytes", "interval_ms", "chunk_bytes")),
        ),
        keys_have_partitions=_has_partitions(fields),
        snapshot=typed_field(fields, "snapshot", bool),
        incarnation=incarnation_field(fields),
        writer=writer_field(fields),
        inner_tables=tuple(map(_parse_inner, objects_field({"inner_tables": [], **fields}, "inner_tables"))),
    )


def _inner_json(inner: InnerTable) -> dict[str, object]:
    return {
        "table": inner.table,
        "table_oid": inner.table_oid,
        "primary_key": inner.primary_key,
        # Only a partitioned table has the key.
        **({"keys_have_partitions": True} if inner.keys_have_partitions else {}),
    }


def _parse_inner(fields: dict[str, Any]) -> InnerTable:
    return InnerTable(
        table_field(fields, "table"),
        integer_field(fields, "table_oid", 0),
        strings_field(fields, "primary_key"),
        _has_partitions(fields),
    )


def _has_partitions(fields: dict[str, Any]) -> bool:
    return "keys_have_partitions" in fields and typed_field(fields, "keys_have_partitions", bool)
