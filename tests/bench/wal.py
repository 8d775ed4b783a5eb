"""``pgoutput`` messages of a table of orders, as PostgreSQL sends them: the input of the benches."""

from collections.abc import Iterator
from struct import pack

from flushtracker.wal.changes import Column, Relation

TENANTS = 1000
FIRST_LSN = 10_000
_ORDERS = 16384
"""The relation's id."""
_COLUMNS = {"id": 20, "tenant_id": 20, "status": 25, "amount": 1700, "updated_at": 1184, "note": 25}
_COMMIT_TIMESTAMP_US = 800_000_000_000_000
"""Since 2000-01-01."""


def orders() -> Relation:
    columns = tuple(Column(name, type_oid, is_key=True) for name, type_oid in _COLUMNS.items())
    return Relation(_ORDERS, "public", "orders", "full", columns)


def row(number: int, tenant: int) -> dict[str, str | None]:
    """The values of a row; ``number`` is its id."""
    return {
        "id": str(number),
        "tenant_id": str(tenant),
        "status": "paid" if number % 3 else "new",
        "amount": f"{number % 1000}.50",
        "updated_at": "2026-11-21 01:02:03.456789+00",
        "note": None if number % 4 == 0 else "leave at the door",
    }


def relation_message() -> bytes:
    columns = b"".join(b"\1" + column.encode() + pack(">xIi", oid, -1) for column, oid in _COLUMNS.items())
    return b"R" + pack(">I", _ORDERS) + b"public\0orders\0f" + pack(">h", len(_COLUMNS)) + columns


def transactions(count: int, changes: int, operation: str = "insert") -> list[bytes]:
    """``count`` transactions of ``changes`` changes each, which go through the tenants in turn."""
    messages = []
    for index in range(count):
        lsn = FIRST_LSN + 100 * index
        messages.append(b"B" + pack(">QqI", lsn, _COMMIT_TIMESTAMP_US, 700 + index))
        messages += _changes(index * changes, changes, operation)
        messages.append(b"C\0" + pack(">QQq", lsn, lsn + 48, _COMMIT_TIMESTAMP_US))
    return messages


def _changes(first: int, count: int, operation: str) -> Iterator[bytes]:
    for number in range(first, first + count):
        new = b"N" + _tuple(row(number, number % TENANTS))
        if operation == "insert":
            yield b"I" + pack(">I", _ORDERS) + new
        else:
            old = row(number, number % TENANTS) | {"status": "new", "note": None}
            yield b"U" + pack(">I", _ORDERS) + b"O" + _tuple(old) + new


def _tuple(values: dict[str, str | None]) -> bytes:
    encoded = [None if value is None else value.encode() for value in values.values()]
    parts = [b"n" if value is None else b"t" + pack(">i", len(value)) + value for value in encoded]
    return pack(">h", len(parts)) + b"".join(parts)
