"""Which transactions a statement on the server would see now: those that have ended, also in its list of processes."""

from typing import Final

from psycopg2.extensions import connection as Connection  # noqa: N812  a class, whatever its module calls it

from flushtracker.postgres.connection import rows

_XIDS: Final = 2**32


def current_snapshot(connection: Connection) -> str:
    """As PostgreSQL writes it: ``xmin:xmax:xid,xid,…``, of which the last are still in progress."""
    ((snapshot,),) = rows(connection, "SELECT txid_current_snapshot()::text")
    return str(snapshot)


def is_visible(snapshot: str, xid: int) -> bool:
    """Whether what ``xid`` did can be seen in ``snapshot``, given that it was not rolled back.

    A snapshot's ids count on beyond 32 bits; ``xid``, as the stream has it, does not, and is within 2**31 of them.

    >>> [is_visible("100:105:100,103", xid) for xid in (99, 100, 102, 103, 105, 106)]
    [True, False, True, False, False, False]
    >>> is_visible("4294967290:4294967300:4294967297", 1), is_visible("4294967290:4294967300:4294967297", 4294967295)
    (False, True)
    """
    _, xmax, running = snapshot.split(":")
    if (xid - int(xmax)) % _XIDS < _XIDS // 2:
        return False
    return xid not in {int(text) % _XIDS for text in running.split(",") if text}
