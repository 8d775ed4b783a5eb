"""Transaction ids of 32 bits, as in the stream and the catalog: they wrap around."""

from typing import Final

XIDS: Final = 2**32
_FIRST: Final = 3
"""Lower xids mark rows that are as old as the cluster."""


def is_before(xid: int, other: int) -> bool:
    """Whether one 32-bit xid was assigned before another one, neither being more than 2**31 ahead.

    >>> is_before(7, 8), is_before(8, 8), is_before(2**32 - 5, 8), is_before(8, 2**32 - 5), is_before(2, 8)
    (True, False, True, False, True)
    """
    return xid < _FIRST or 0 < (other - xid) % XIDS < XIDS // 2
