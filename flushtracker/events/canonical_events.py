"""Reads fragments and flush notifications as this project writes them into names and numbers, without an object.

:mod:`flushtracker.events.stream_events` says what an event is, and reads any. Most events are text that one of the
patterns here matches as a whole: keys in the order in which they are written, no spaces, no escapes, ASCII, numbers far
below 2**63. Then the pattern's groups are the event: no key can occur twice, and no value can be of another type. All
else, and whatever contradicts itself, is ``None`` here, and for ``stream_events`` to read, or to say what is wrong.
"""

import re
from typing import Final, NamedTuple

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
    rf'\{{"v":1,"source":{_NAME},"xid":{_UNUSED},"lsn":{_NUMBER},'
    rf'"follows":\{{"tx_offset":(-1|0|[1-9][0-9]{{0,17}}),"op_offset":{_NUMBER}\}},'
    rf'"last_log_offset":\{{"tx_offset":\2,"op_offset":{_NUMBER}\}},'
    rf'"start":(true|false),"has_begin":(?:true|false),"commit":(?:null|({_COMMIT})),"shapes":\[(.*)\]\}}'
).fullmatch

_split_shapes: Final = re.compile(
    rf'\{{"shape_id":{_NAME},"last_offset":(?:null,"change_count":0|{_OFFSET},"change_count":[1-9][0-9]{{0,17}})\}}'
    r"(?:,(?=\{)|\Z)"
).split
_PARTS: Final = 4
"""Of each shape: what is before it, which must be nothing, its id, and the numbers of its last offset."""


class CanonicalFlush(NamedTuple):
    """What a flush notification says."""

    source: str
    kind: str
    shape_id: str
    tx: int
    op: int


class CanonicalFragment(NamedTuple):
    """What a fragment says; it ends at ``(tx, op)``. A shape without a change in it has -1 in ``last_ops``."""

    source: str
    tx: int
    op: int
    follows: tuple[int, int]
    start: bool
    is_commit: bool
    shape_ids: list[str]
    last_ops: list[int]


def canonical_flush(text: str) -> CanonicalFlush | None:
    """Read a flush notification.

    >>> canonical_flush('{"v":1,"source":"a","type":"flushed","shape_id":"s","offset":{"tx_offset":7,"op_offset":2}}')
    CanonicalFlush(source='a', kind='flushed', shape_id='s', tx=7, op=2)
    """
    match = _flush(text)
    if match is None:
        return None
    source, kind, shape_id, tx, op = match.groups()
    return CanonicalFlush(source, kind, shape_id, int(tx), int(op))


def canonical_fragment(text: str) -> CanonicalFragment | None:
    """Read a fragment."""
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
    )
    if not is_consistent:
        return None
    return CanonicalFragment(source, tx, op, follows, start == "true", commit is not None, parts[1::_PARTS], last_ops)
