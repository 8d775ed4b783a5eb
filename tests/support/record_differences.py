"""``Difference``: what Debezium's record and ours do not have in common, field by field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from struct import pack
from typing import Any, Final

from tests.support.debezium_beside import ReadRecord

ABSENT: Final = "(absent)"
_MADE_AT: Final = ("ts_ms", "ts_us", "ts_ns")
_ROWS: Final = ("before", "after")


@dataclass(frozen=True)
class Difference:
    """``part`` is ``before``, ``after``, ``source``, ``envelope``, ``headers``, or ``key``, with ``schema`` in front of
    it for a field of its schema; ``before`` or ``after`` without a ``name`` is the whole row.
    """

    table: str
    op: str | None
    part: str
    name: str
    theirs: Any
    ours: Any


def differences(table: str, theirs: list[ReadRecord], ours: list[ReadRecord]) -> Iterator[Difference]:
    """All of them; a record that only one has raises, and so does a row of a snapshot after a change."""
    for their, our in zip_longest(_in_order(theirs), _in_order(ours)):
        assert (their.value is None, their.key is None) == (our.value is None, our.key is None)
        op = _op(their)
        for part, name, left, right in _record(their, our):
            yield Difference(table, op, part, name, left, right)


def _in_order(records: list[ReadRecord]) -> list[ReadRecord]:
    """With the rows of the snapshot, which come in any order, by their keys."""
    count = sum(_op(record) == "r" for record in records)
    assert all(_op(record) == "r" for record in records[:count])
    return sorted(records[:count], key=lambda record: str(record.key["payload"])) + records[count:]


def _op(record: ReadRecord) -> str | None:
    return None if record.value is None else str(record.value["payload"]["op"])


def _record(theirs: ReadRecord, ours: ReadRecord) -> Iterator[tuple[str, str, Any, Any]]:
    if theirs.headers != ours.headers:
        yield "headers", "", theirs.headers, ours.headers
    if theirs.key is not None:
        yield from _fields("schema key", _flat(theirs.key["schema"]), _flat(ours.key["schema"]), {})
        yield from _fields("key", theirs.key["payload"], ours.key["payload"], {})
    if theirs.value is None:
        return
    schema = _flat(theirs.value["schema"])
    yield from _fields("schema", schema, _flat(ours.value["schema"]), {})
    left, right = theirs.value["payload"], ours.value["payload"]
    for row in _ROWS:
        if left[row] is None or right[row] is None:
            if left[row] != right[row]:
                yield row, "", left[row], right[row]
            continue
        yield from _fields(row, left[row], right[row], schema)
    yield from _fields("source", left["source"], right["source"], {})
    yield from _fields("envelope", _others(left), _others(right), {})


def _others(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What is neither a row nor the source; of the times at which the record was made, only that they are there."""
    return {name: name in _MADE_AT or value for name, value in payload.items() if name not in {*_ROWS, "source"}}


def _fields(
    part: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], schema: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any, Any]]:
    for name in {**theirs, **ours}:
        left, right = theirs.get(name, ABSENT), ours.get(name, ABSENT)
        if "'float'" in str(schema.get(f"{part}.{name}")):
            left, right = _single(left), _single(right)
        if left != right or type(left) is not type(right):
            yield part, name, left, right


def _single(value: Any) -> Any:
    """A number of single precision by its bytes: Java and PostgreSQL write some with other digits."""
    if isinstance(value, list):
        return [_single(each) for each in value]
    return pack("f", value) if isinstance(value, float) else value


def _flat(schema: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The facts of each field of a schema, by its path."""
    found = {path: {name: value for name, value in schema.items() if name != "fields"}}
    for field in schema.get("fields", ()):
        found |= _flat(field, f"{path}.{field['field']}".lstrip("."))
    return found
