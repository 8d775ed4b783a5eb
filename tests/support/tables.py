"""Relations and transactions for the tests of shapes and routing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from flushtracker.wal.changes import Change, Column, Commit, Relation, TransactionFragment
from flushtracker.wal.log_offset import LogOffset

BIGINT, TEXT = 20, 25
LSN = 1000
COMMIT = Commit("2026-11-21T01:02:03.456789Z", 2000)


def relation(
    name: str,
    columns: str,
    identity: Literal["default", "nothing", "full", "index"] = "default",
) -> Relation:
    """A table of the schema ``public``; ``columns`` is a list such as ``id* day* body``, where a star marks the key.

    ``id``, ``day`` and ``qty`` are bigint, others text. Under FULL every column is flagged as key, as in PostgreSQL.
    """
    names = columns.split()
    return Relation(
        relation_id=sum(map(ord, name)),
        schema="public",
        name=name,
        replica_identity=identity,
        columns=tuple(
            Column(
                column.rstrip("*"),
                BIGINT if column.rstrip("*") in {"id", "day", "qty"} else TEXT,
                is_key=column.endswith("*") or identity == "full",
            )
            for column in names
        ),
    )


USERS = relation("users", "id* region bio")
FULL_USERS = relation("users", "id region bio", "full")
KEYLESS_USERS = relation("users", "id region bio", "nothing")
EVENTS_P0 = relation("events_p0", "id* day* body")
EVENTS_P1 = relation("events_p1", "id* day* body")


def at(op_offset: int, lsn: int = LSN) -> LogOffset:
    return LogOffset(lsn, op_offset)


def transaction(changes: Sequence[Change], lsn: int = LSN, sizes: Sequence[int] = ()) -> list[TransactionFragment]:
    """``changes``, numbered 0, 2, 4, …, as fragments of ``sizes``; the last has all the rest, at least one change."""
    numbered = [replace(change, offset=at(2 * index, lsn)) for index, change in enumerate(changes)]
    parts: list[tuple[Change, ...]] = []
    for size in sizes:
        if len(numbered) > size:
            parts.append(tuple(numbered[:size]))
            numbered = numbered[size:]
    parts.append(tuple(numbered))
    return [
        TransactionFragment(
            xid=lsn + 7,
            lsn=lsn,
            last_log_offset=part[-1].offset if part else at(0, lsn),
            has_begin=index == 0,
            commit=COMMIT if index == len(parts) - 1 else None,
            changes=part,
        )
        for index, part in enumerate(parts)
    ]
