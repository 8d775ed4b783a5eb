"""Parses the output of PostgreSQL's ``test_decoding``: a second opinion on the same WAL.

It shares neither code nor format with the decoder: ``test_decoding`` prints text, ``pgoutput`` sends bytes. If the two
agree, that is evidence for the decoder. The parser rejects everything that it does not know.
"""

import gzip
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NAME: Final = r'(?:"(?:[^"]|"")+"|[a-z_][a-z0-9_$]*)'
_COLUMN: Final = re.compile(rf"({_NAME})\[([^:]+?)\]:('(?:[^']|'')*'|[^' ]+)(?: |$)")
_CHANGE: Final = re.compile(
    rf"table ({_NAME}\.{_NAME}(?:, {_NAME}\.{_NAME})*): (INSERT|UPDATE|DELETE|TRUNCATE): (.*)", re.DOTALL
)
_TABLE: Final = re.compile(rf"({_NAME})\.({_NAME})")

Row = dict[str, str | None]


@dataclass(frozen=True)
class TruthChange:
    """One change of one table. ``old`` lacks NULL columns, ``new`` lacks unchanged TOAST values."""

    lsn: int
    operation: str
    table: tuple[str, str]
    old: Row | None = None
    new: Row | None = None


@dataclass
class TruthTransaction:
    xid: int
    end_lsn: int = 0
    changes: list[TruthChange] = field(default_factory=list)


def read_truth(path: Path) -> list[TruthTransaction]:
    """The transactions in commit order, each with its changes to all tables."""
    transactions: list[TruthTransaction] = []
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            lsn, xid, text = line.rstrip("\n").split("\t", 2)
            if text == f"BEGIN {xid}":
                transactions.append(TruthTransaction(int(xid)))
                continue
            transaction = transactions[-1]
            if transaction.xid != int(xid) or transaction.end_lsn:
                raise ValueError(f"line of transaction {xid} inside transaction {transaction.xid}")
            if text == f"COMMIT {xid}":
                transaction.end_lsn = int(lsn)
            else:
                transaction.changes += parse_change(int(lsn), text)
    return transactions


def parse_change(lsn: int, text: str) -> list[TruthChange]:
    """Parse one line: one change, or one for each table of a TRUNCATE.

    >>> parse_change(1, '''table public."Odd": INSERT: "a b"[text]:'it''s' n[int]:1 t[text]:unchanged-toast-datum''')
    [TruthChange(lsn=1, operation='insert', table=('public', 'Odd'), old=None, new={'a b': "it's", 'n': '1'})]
    >>> [change.table for change in parse_change(1, "table public.a, s.b: TRUNCATE: (no-flags)")]
    [('public', 'a'), ('s', 'b')]
    """
    match = _CHANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a change: {text[:80]}")
    tables = [(_unquote(schema), _unquote(name)) for schema, name in _TABLE.findall(match[1])]
    operation, body = match[2].lower(), match[3]
    if operation == "truncate":
        return [TruthChange(lsn, operation, table) for table in tables]
    (table,) = tables
    if operation == "insert":
        return [TruthChange(lsn, operation, table, new=_row(body))]
    if operation == "delete":
        return [TruthChange(lsn, operation, table, old=_row(body))]
    if not body.startswith("old-key: "):
        return [TruthChange(lsn, operation, table, new=_row(body))]
    old, rest = _columns(body, len("old-key: "))
    if not body.startswith("new-tuple: ", rest):
        raise ValueError(f"no new tuple in {text[:80]}")
    return [TruthChange(lsn, operation, table, old=old, new=_row(body[rest + len("new-tuple: ") :]))]


def _row(text: str) -> Row:
    row, end = _columns(text, 0)
    if end != len(text):
        raise ValueError(f"no column at {end} of {text[:80]}")
    return row


def _columns(text: str, position: int) -> tuple[Row, int]:
    """The columns from ``position`` on, and the position after them."""
    row: Row = {}
    while match := _COLUMN.match(text, position):
        name, value = _unquote(match[1]), match[3]
        if name in row:
            raise ValueError(f"duplicate column {name} in {text[:80]}")
        if value == "null":
            row[name] = None
        elif value != "unchanged-toast-datum":
            row[name] = value[1:-1].replace("''", "'") if value.startswith("'") else value
        position = match.end()
    return row, position


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
