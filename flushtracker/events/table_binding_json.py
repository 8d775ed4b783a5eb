"""``TableBinding`` and ``PartitionBinding`` as JSON, in registry entries; parsed as strictly as events are.

A table's partitions are in entries of their own.
"""

from typing import Any, Final, get_args

from flushtracker.errors import DecodeError
from flushtracker.events.strict_json import (
    integer_field,
    integers_field,
    objects_field,
    strings_field,
    table_field,
    text_field,
    typed_field,
)
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.changes import TypeKind

_KINDS: Final[dict[str, TypeKind]] = {kind: kind for kind in get_args(TypeKind)}


def table_binding_json(binding: TableBinding) -> dict[str, object]:
    """The binding as a JSON object; the inverse of :func:`parse_table_binding`."""
    return {
        "oid": binding.oid,
        "table": binding.table,
        "storage": binding.storage,
        "attributes": binding.attributes,
        "schema_since": binding.schema_since,
        "partitioned": binding.is_partitioned,
        "logged": binding.is_logged,
        "children": binding.has_children,
        "filtered": binding.is_filtered,
        "published_by": binding.published_by,
        "columns": [
            {
                "number": column.number,
                "name": column.name,
                "type_oid": column.type_oid,
                "type_modifier": column.type_modifier,
                "version": column.version,
                "fills_old_rows": column.fills_old_rows,
                "deterministic": column.is_deterministic,
                **({} if column.case_differences is None else {"case_differences": column.case_differences}),
                "altered_before": column.altered_before,
            }
            for column in binding.columns
        ],
        "types": [_type_json(each) for each in binding.types],
        "keys": [
            {
                "oid": key.oid,
                "columns": key.columns,
                "index": key.index,
                "version": key.version,
                "storage": key.storage,
                "primary": key.is_primary,
            }
            for key in binding.keys
        ],
        **({"case_differences": binding.case_differences} if binding.case_differences else {}),
        "toast": binding.toast,
    }


def partition_binding_json(binding: PartitionBinding) -> dict[str, object]:
    """The binding as a JSON object; the inverse of :func:`parse_partition_binding`."""
    return {
        "oid": binding.oid,
        "table": binding.table,
        "storage": binding.storage,
        "attached": binding.attached,
        "schema_since": binding.schema_since,
        "logged": binding.is_logged,
        "filtered": binding.is_filtered,
        "published_by": binding.published_by,
        "toast": binding.toast,
    }


def _type_json(binding: TypeBinding) -> dict[str, object]:
    return {
        "oid": binding.oid,
        "schema": binding.schema,
        "name": binding.name,
        "kind": binding.kind,
        "parts": binding.parts,
        "attributes": binding.attributes,
        "labels": [{"oid": label.oid, "text": label.text, "version": label.version} for label in binding.labels],
    }


def parse_table_binding(fields: dict[str, Any]) -> TableBinding:
    """Read what :func:`table_binding_json` wrote; raises ``DecodeError``."""
    return TableBinding(
        oid=integer_field(fields, "oid", 1),
        table=table_field(fields, "table"),
        columns=tuple(_column(column) for column in objects_field(fields, "columns")),
        storage=integer_field(fields, "storage", 0),
        attributes=integer_field(fields, "attributes", 0),
        schema_since=integer_field(fields, "schema_since", 0),
        is_partitioned=typed_field(fields, "partitioned", bool),
        is_logged=typed_field(fields, "logged", bool),
        has_children=typed_field(fields, "children", bool),
        published_by=strings_field(fields, "published_by"),
        is_filtered=typed_field(fields, "filtered", bool),
        types=tuple(_type(each) for each in objects_field(fields, "types")),
        keys=tuple(_key(key) for key in objects_field(fields, "keys")),
        toast=integer_field(fields, "toast", 0),
        case_differences=strings_field({"case_differences": [], **fields}, "case_differences"),
    )


def _key(fields: dict[str, Any]) -> KeyBinding:
    return KeyBinding(
        oid=integer_field(fields, "oid", 1),
        columns=strings_field(fields, "columns"),
        index=integer_field(fields, "index", 0),
        version=integer_field(fields, "version", 0),
        storage=integer_field(fields, "storage", 0),
        is_primary=typed_field(fields, "primary", bool),
    )


def parse_partition_binding(fields: dict[str, Any]) -> PartitionBinding:
    """Read what :func:`partition_binding_json` wrote; raises ``DecodeError``."""
    return PartitionBinding(
        oid=integer_field(fields, "oid", 1),
        table=table_field(fields, "table"),
        storage=integer_field(fields, "storage", 0),
        attached=typed_field(fields, "attached", str),
        schema_since=integer_field(fields, "schema_since", 0),
        is_logged=typed_field(fields, "logged", bool),
        published_by=strings_field(fields, "published_by"),
        is_filtered=typed_field(fields, "filtered", bool),
        toast=integer_field(fields, "toast", 0),
    )


def _type(fields: dict[str, Any]) -> TypeBinding:
    kind = text_field(fields, "kind")
    if kind not in _KINDS:
        raise DecodeError(f"kind is {kind!r:.40}, expected one of {', '.join(_KINDS)}")
    return TypeBinding(
        oid=integer_field(fields, "oid", 1),
        schema=text_field(fields, "schema"),
        name=text_field(fields, "name"),
        kind=_KINDS[kind],
        parts=integers_field(fields, "parts", 1),
        attributes=integer_field(fields, "attributes", 0),
        labels=tuple(_label(label) for label in objects_field(fields, "labels")),
    )


def _label(fields: dict[str, Any]) -> EnumLabel:
    # An enum's label may be empty.
    return EnumLabel(
        oid=integer_field(fields, "oid", 1),
        text=typed_field(fields, "text", str),
        version=integer_field(fields, "version", 0),
    )


def _column(fields: dict[str, Any]) -> ColumnBinding:
    return ColumnBinding(
        number=integer_field(fields, "number", 1),
        name=text_field(fields, "name"),
        type_oid=integer_field(fields, "type_oid", 1),
        type_modifier=integer_field(fields, "type_modifier", -1),
        version=integer_field(fields, "version", 0),
        fills_old_rows=typed_field(fields, "fills_old_rows", bool),
        is_deterministic=typed_field(fields, "deterministic", bool),
        case_differences=strings_field(fields, "case_differences") if "case_differences" in fields else None,
        altered_before=integer_field(fields, "altered_before", 0),
    )
