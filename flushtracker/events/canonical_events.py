"""A fast reader for fragments and flush notifications in the form in which this project writes them.

:mod:`flushtracker.events.stream_events` defines the events and reads them in any form. Most events match one of the
patterns here as a whole: keys in the order in which they are written, no spaces, no escapes, ASCII, numbers far below
2**63. Then the pattern's groups are the event: no key can occur twice, and no value can have another type. For all
other text, and for an event that contradicts itself, these functions return ``None``; ``stream_events`` then reads it,
or says what is wrong.
"""

import re
from typing import Final, NamedTuple

from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import is_list, lists_in_order

_NAME: Final = r'"([ !#-\[\]-~]+)"'
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_UNUSED: Final = "(?:0|[1-9][0-9]{0,17})"
_OFFSET: Final = rf'\{{"tx_offset":{_NUMBER},"op_offset":{_NUMBER}\}}'
_COMMIT: Final = rf'\{{"commit_timestamp":"[ !#-\[\]-~]+","end_lsn":{_UNUSED}\}}'

_flush: Final = re.compile(
    rf'\{{"v":1,"source":{_NAME},"type":"(flushed|removed)","shape_id":{_NAME},"offset":{_OFFSET}\}}'
).fullmatch

# `\2` is the fragment's LSN.
_fragment: Final = re.compile(
    rf'\{{"v":[12],"source":{_NAME},"xid":{_UNUSED},"lsn":{_NUMBER},'
    rf'"follows":\{{"tx_offset":(-1|0|[1-9][0-9]{{0,17}}),"op_offset":{_NUMBER}\}},'
    rf'"last_log_offset":\{{"tx_offset":\2,"op_offset":{_NUMBER}\}},'
    rf'"start":(true|false),"has_begin":(?:true|false),"commit":(?:null|({_COMMIT})),"shapes":\[(.*)\]\}}'
).fullmatch

_split_shapes: Final = re.compile(
    rf'\{{"shape_id":{_NAME},"last_offset":(?:null,"change_count":0|{_OFFSET},"change_count":[1-9][0-9]{{0,17}})\}}'
    r"(?:,(?=\{)|\Z)"
).split
_PARTS: Final = 4
"""For each shape: the text before it, which must be empty, its id, and the two numbers of its last offset."""


class CanonicalFlush(NamedTuple):
    """The fields of a flush notification."""

    source: str
    kind: str
    shape_id: str
    tx: int
    op: int


class CanonicalFragment(NamedTuple):
    """The fields of a fragment, which ends at ``(tx, op)``. A shape without a change in it has -1 in ``last_ops``."""

    source: str
    tx: int
    op: int
    follows: tuple[int, int]
    start: bool
    is_commit: bool
    shape_ids: list[str]
    last_ops: list[int]


def canonical_flush(text: str) -> CanonicalFlush | None:
    """Read a flush notification; ``None`` if it is not in canonical form.

    >>> canonical_flush('{"v":1,"source":"a","type":"flushed","shape_id":"s","offset":{"tx_offset":7,"op_offset":2}}')
    CanonicalFlush(source='a', kind='flushed', shape_id='s', tx=7, op=2)
    """
    match = _flush(text)
    if match is None:
        return None
    source, kind, shape_id, tx, op = match.groups()
    return CanonicalFlush(source, kind, shape_id, int(tx), int(op))


def canonical_fragment(text: str) -> CanonicalFragment | None:
    """Read a fragment; ``None`` if it is not in canonical form."""
    match = _fragment(text)
    if match is None:
        return None
    source, lsn, follows_tx, follows_op, last_op, start, commit, shapes = match.groups()
    parts = _split_shapes(shapes)
    last_ops = [-1 if op is None else int(op) for op in parts[3::_PARTS]]
    tx, op, follows = int(lsn), int(last_op), (int(follows_tx), int(follows_op))
    is_consistent = (
        not any(parts[::_PARTS])
        and follows < (tx, op)
        and {lsn, None}.issuperset(parts[2::_PARTS])
        # An update that splits is written one past the boundary.
        and max(last_ops, default=0) <= op + 1
        and (not is_list(op) or lists_in_order(LogOffset(*follows), LogOffset(tx, op), parts[1::_PARTS]))
    )
    if not is_consistent:
        return None
    return CanonicalFragment(source, tx, op, follows, start == "true", commit is not None, parts[1::_PARTS], last_ops)
