"""Where a transaction's commit lists each shape, if it has too many for one event.

The list of a commit's shapes is then split into several fragments, the *list parts*. Only the last has the commit. They
follow the transaction's operations, so their ``op_offset`` is above every operation's. Each shape is listed at its own
``op_offset``, which depends only on its id, in this order, and a part ends at that of its last shape. So a part that
ends at *n* states that all of the transaction's shapes at or below *n* have been listed. That holds wherever the list
is cut, whatever limit a resend has, and whichever shapes were removed in between.
"""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from flushtracker.wal.log_offset import LogOffset

FIRST_LISTED: Final = 2**58
"""Above every operation of a transaction."""
LAST_LISTED: Final = FIRST_LISTED + 2**32 - 1


def listed_at(shape_id: str) -> int:
    """The ``op_offset`` of the shape in a split list. Different shapes may have the same one.

    >>> listed_at("users") == listed_at("users"), is_list(listed_at("users"))
    (True, True)
    """
    return FIRST_LISTED + crc32(shape_id.encode())


def is_list(op_offset: int) -> bool:
    """Whether a fragment that ends at ``op_offset`` is a list part.

    >>> is_list(4), is_list(2**63 - 1)
    (False, False)
    """
    return FIRST_LISTED <= op_offset <= LAST_LISTED


def lists_in_order(follows: LogOffset, last_log_offset: LogOffset, shape_ids: Iterable[str]) -> bool:
    """Whether a fragment that is a list part has only shapes listed past what it follows, up to its end."""
    if not is_list(last_log_offset.op_offset):
        return True
    continues = follows.tx_offset == last_log_offset.tx_offset and is_list(follows.op_offset)
    first = follows.op_offset + 1 if continues else FIRST_LISTED
    return all(first <= listed_at(shape_id) <= last_log_offset.op_offset for shape_id in shape_ids)
