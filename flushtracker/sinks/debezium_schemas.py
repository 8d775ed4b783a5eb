"""The schemas of Debezium's records, as Connect's JSON converter writes them before each key and value.

All columns but those of the key are optional, and none has a default: the registry does not have these facts. So is
``source.ts_ms``, because a change may be sent before its commit is known.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec.json import encode

from flushtracker.sinks.debezium_types import ConnectType, Schema

_SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def _field(name: str, kind: str = "string", *, is_optional: bool = False) -> Schema:
    return {"type": kind, "optional": is_optional, "field": name}


def _struct(fields: Iterable[Schema], name: str, **facts: object) -> Schema:
    return {"type": "struct", "fields": list(fields), "optional": False, "name": name, **facts}


_TIMES: Final = [_field(name, "int64", is_optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]
_SOURCE: Final = _struct(
    [
        *[_field("version"), _field("connector"), _field("name"), _TIMES[0]],
        {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": _SNAPSHOTS},
            "default": "false",
            "field": "snapshot",
        },
        *[_field("db"), _field("sequence", is_optional=True), *_TIMES[1:], _field("schema"), _field("table")],
        *[_field(name, "int64", is_optional=True) for name in ("txId", "lsn", "xmin")],
        *[_field("origin", is_optional=True), _field("origin_lsn", "int64", is_optional=True)],
    ],
    "io.debezium.connector.postgresql.Source",
    version=1,
    field="source",
)
_TRANSACTION: Final = _struct(
    [_field("id"), _field("total_order", "int64"), _field("data_collection_order", "int64")],
    "event.block",
    version=1,
    field="transaction",
)


def key_schema(prefix: str, key: Iterable[str], columns: Mapping[str, ConnectType]) -> bytes:
    """As JSON; ``prefix`` is Debezium's name of the table, ``app.public.orders``."""
    fields = (columns[name].field(name, is_optional=False) for name in key)
    return encode(_struct(fields, f"{prefix}.Key"))


def envelope_schema(prefix: str, key: Collection[str], columns: Mapping[str, ConnectType]) -> bytes:
    """Likewise, of the value."""
    fields = [column.field(name, is_optional=name not in key) for name, column in columns.items()]
    rows = ({**_struct(fields, f"{prefix}.Value"), "optional": True, "field": name} for name in ("before", "after"))
    envelope = [*rows, _SOURCE, {**_TRANSACTION, "optional": True}, _field("op"), *_TIMES]
    return encode(_struct(envelope, f"{prefix}.Envelope", version=2))


def with_schema(schema: bytes | None, payload: Any) -> bytes:
    """A key or a value as JSON, after its schema if there is one."""
    text = encode(payload)
    return text if schema is None else b'{"schema":' + schema + b',"payload":' + text + b"}"
