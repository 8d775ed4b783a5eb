"""A fast reader for fragments, shape changes and flush notifications in the form in which this project writes them.

:mod:`flushtracker.events.stream_events` defines the events and reads them in any form. Most events match one of the
patterns here as a whole: keys in the order in which they are written, no spaces, no escapes, ASCII, numbers far below
2**63. Then the pattern's groups are the event: no key can occur twice, and no value can have another type. For all
other text, and for an event that contradicts itself, these functions return ``None``; ``stream_events`` then reads it,
or says what is wrong.

The keys and rows of shape changes may have any characters, and escapes as they are written. A row stays text.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.shape_list import is_list, lists_in_order

_NAME: Final = r'"([ !#-\[\]-~]+)"'
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_UNUSED: Final = "(?:0|[1-9][0-9]{0,17})"
_OFFSET: Final = rf'\{{"tx_offset":{_NUMBER},"op_offset":{_NUMBER}\}}'
_COMMIT: Final = rf'\{{"commit_timestamp":"[ !#-\[\]-~]+","end_lsn":{_UNUSED}\}}'

_flush: Final = re.compile(
    rf'\{{"v":1,"source":{_NAME},"type":"(flushed|removed)","shape_id":{_NAME},"writer":{_NAME},'
    rf'"offset":{_OFFSET}\}}'
).fullmatch

# `\2` is the fragment's LSN.
_fragment: Final = re.compile(
    rf'\{{"v":1,"source":{_NAME},"xid":{_UNUSED},"lsn":{_NUMBER},'
    rf'"follows":\{{"tx_offset":(-1|0|[1-9][0-9]{{0,17}}),"op_offset":{_NUMBER}\}},'
    rf'"last_log_offset":\{{"tx_offset":\2,"op_offset":{_NUMBER}\}},'
    rf'"start":(true|false),"has_begin":(?:true|false),"commit":(?:null|({_COMMIT})),"shapes":\[(.*)\]\}}'
).fullmatch

_split_shapes: Final = re.compile(
    rf'\{{"shape_id":{_NAME},(?:"writer":{_NAME},)?'
    rf'"last_offset":(?:null,"change_count":0|{_OFFSET},"change_count":[1-9][0-9]{{0,17}})\}}'
    r"(?:,(?=\{)|\Z)"
).split
_PARTS: Final = 5
"""For each shape: the text before it, which must be empty, its id, its writer, and its last offset's two numbers."""


# Each escape as JSON is written: by its letter, or in lower case if it has none.
_ESCAPE: Final = r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))'
_STRING: Final = rf'"[^"\\\x00-\x1f]*(?:{_ESCAPE}[^"\\\x00-\x1f]*)*"'
_COLUMN: Final = rf'"[^"\\\x00-\x1f]*":(?:{_STRING}|null)'
_ROW: Final = rf"(\{{(?:{_COLUMN}(?:,{_COLUMN})*)?\}})"
_KEY: Final = r'"((?!")[^"\\\x00-\x1f]*(?:\\"[^"\\\x00-\x1f]*)*)"'

_changes: Final = re.compile(
    rf'\{{"v":1,"source":{_NAME},"shape_id":{_NAME},(?:"incarnation":([1-9][0-9]{{0,17}}),)?'
    rf'(?:"writer":{_NAME},)?"xid":{_NUMBER},'
    rf'"follows":\{{"tx_offset":(-1|0|[1-9][0-9]{{0,17}}),"op_offset":{_NUMBER}\}},"start":(true|false),'
    rf'"last_log_offset":{_OFFSET},"has_begin":(?:true|false),'
    rf'"commit":(?:null|\{{"commit_timestamp":"([ !#-\[\]-~]+)","end_lsn":{_UNUSED}\}}),"items":\[(.*)\]\}}'
).fullmatch

_split_items: Final = re.compile(
    rf'\{{"offset":{_OFFSET},"operation":"(insert|update|delete|truncate)","key":(?:null|{_KEY})'
    rf'(?:,"value":{_ROW})?(?:,"old_value":{_ROW})?\}}(?:,(?=\{{)|\Z)'
).split
_ITEM_PARTS: Final = 7
"""For each item: the text before it, which must be empty, and the six columns of :class:`CanonicalItems`."""


class CanonicalFlush(NamedTuple):
    """The fields of a flush notification."""

    source: str
    kind: str
    shape_id: str
    writer: str
    tx: int
    op: int


class CanonicalFragment(NamedTuple):
    """The fields of a fragment, which ends at ``(tx, op)``. A shape without a change in it has -1 in ``last_ops``.

    ``writers``: of each shape; ``None`` if all are the log's, as most often.
    """

    source: str
    tx: int
    op: int
    follows: tuple[int, int]
    start: bool
    is_commit: bool
    shape_ids: list[str]
    writers: list[str] | None
    last_ops: list[int]


class CanonicalItems(NamedTuple):
    """The items of an event of shape changes as columns; their rows are JSON objects as text, as they are written."""

    tx_offsets: list[int]
    op_offsets: list[int]
    operations: list[str]
    keys: list[str | None]
    values: list[str | None]
    old_values: list[str | None]


class CanonicalChanges(NamedTuple):
    """The fields of an event of shape changes, which ends at ``(tx, op)``; only a commit has a timestamp."""

    source: str
    shape_id: str
    xid: int
    follows: tuple[int, int]
    tx: int
    op: int
    start: bool
    commit_timestamp: str | None
    items: CanonicalItems
    incarnation: int
    writer: str


def canonical_flush(text: str) -> CanonicalFlush | None:
    """Read a flush notification; ``None`` if it is not in canonical form.

    >>> offset = '{"tx_offset":7,"op_offset":2}'
    >>> canonical_flush('{"v":1,"source":"a","type":"flushed","shape_id":"s","writer":"log","offset":%s}' % offset)
    CanonicalFlush(source='a', kind='flushed', shape_id='s', writer='log', tx=7, op=2)
    """
    match = _flush(text)
    if match is None:
        return None
    source, kind, shape_id, writer, tx, op = match.groups()
    return CanonicalFlush(source, kind, shape_id, writer, int(tx), int(op))


def canonical_fragment(text: str) -> CanonicalFragment | None:
    """Read a fragment; ``None`` if it is not in canonical form."""
    match = _fragment(text)
    if match is None:
        return None
    source, lsn, follows_tx, follows_op, last_op, start, commit, shapes = match.groups()
    parts = _split_shapes(shapes)
    last_ops = [-1 if op is None else int(op) for op in parts[4::_PARTS]]
    tx, op, follows = int(lsn), int(last_op), (int(follows_tx), int(follows_op))
    is_consistent = (
        not any(parts[::_PARTS])
        and follows < (tx, op)
        and {lsn, None}.issuperset(parts[3::_PARTS])
        # An update that splits is written one past the boundary.
        and max(last_ops, default=0) <= op + 1
        and (not is_list(op) or lists_in_order(LogOffset(*follows), LogOffset(tx, op), parts[1::_PARTS]))
    )
    if not is_consistent:
        return None
    named = parts[2::_PARTS]
    writers = [writer or LOG_WRITER for writer in named] if any(named) else None
    return CanonicalFragment(
        *(source, tx, op, follows, start == "true", commit is not None),
        *(parts[1::_PARTS], writers, last_ops),
    )


def canonical_changes(text: str) -> CanonicalChanges | None:
    """Read an event of shape changes; ``None`` if it is not in canonical form."""
    match = _changes(text)
    if match is None:
        return None
    source, shape_id, incarnation, writer, xid, *rest = match.groups()
    follows_tx, follows_op, start, last_tx, last_op, commit_timestamp, items = rest
    parts = _split_items(items)
    before, txs, ops, operations, keys, values, old_values = (
        parts[column::_ITEM_PARTS] for column in range(_ITEM_PARTS)
    )
    tx, op, follows = int(last_tx), int(last_op), (int(follows_tx), int(follows_op))
    is_consistent = (
        not any(before)
        and follows < (tx, op)
        and txs.count(last_tx) == len(txs)
        and _have_distinct_columns([*filter(None, values), *filter(None, old_values)])
    )
    if not is_consistent:
        return None
    unescaped = [key and key.replace('\\"', '"') for key in keys]
    columns = CanonicalItems([tx] * len(txs), [*map(int, ops)], operations, unescaped, values, old_values)
    return CanonicalChanges(
        *(source, shape_id, int(xid), follows, tx, op),
        *(start == "true", commit_timestamp, columns, int(incarnation or 1), writer or LOG_WRITER),
    )


def _have_distinct_columns(rows: Sequence[str]) -> bool:
    """Whether no row, each of which matches the pattern, names a column twice.

    The quote that ends a name is the only one before a colon that has no backslash before it.
    """
    text = ",".join(rows)
    columns = text.count('":') - text.count('\\":')
    return columns == sum(map(len, json.loads(f"[{text}]")))
