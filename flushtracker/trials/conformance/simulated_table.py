"""``SimulatedTable``: the rows of a shape; each of its changes is valid after the ones before."""

from collections.abc import Iterable
from random import Random
from typing import Final

from flushtracker.wal.changes import LogItem, Row
from flushtracker.wal.log_offset import LogOffset

_KEYS: Final = 24
_PARTITIONS: Final = 3
_FIRST_ROWS: Final = 8
_TEXTS: Final = ("", "7", "naïve 🙂", 'a "quote" and a \\', "<b>&amp;</b>", "9007199254740993", "x" * 500)

Rows = dict[str, Row]
"""Rows by key."""


class SimulatedTable:
    """``first_rows`` are the rows before the first change that is sent; only a snapshot has them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        keys = rng.sample(range(_KEYS), _FIRST_ROWS)
        self.first_rows = {_key(number): self._row(number) for number in keys}
        self._rows: Rows = dict(self.first_rows)

    def change_unsent(self, changes: int) -> None:
        """Make this many changes that are never sent; ``first_rows`` then has the rows after them."""
        for number in range(changes):
            self.items(LogOffset(0, 2 * number))
        self.first_rows = dict(self._rows)

    def items(self, offset: LogOffset) -> tuple[LogItem, ...]:
        """Make the next change, and return its items."""
        items = self._change(offset)
        self._rows = rows_after(self._rows, items)
        return items

    def _change(self, offset: LogOffset) -> tuple[LogItem, ...]:
        rng, chance, number = self._rng, self._rng.random(), self._rng.randrange(_KEYS)
        key = _key(number)
        if chance < 0.01:
            return (LogItem(offset, "truncate", None, None, None),)
        if chance < 0.03:
            return (LogItem(offset, "truncate_partition", f'"public"."t"/{rng.randrange(_PARTITIONS)}', None, None),)
        if key not in self._rows:
            return (LogItem(offset, "insert", key, self._row(number), None),)
        if chance < 0.3:
            return (LogItem(offset, "delete", key, None, self._rows[key]),)
        absent = [other for other in range(_KEYS) if _key(other) not in self._rows]
        if chance < 0.45 and absent:
            moved = rng.choice(absent)
            inserted = LogOffset(offset.tx_offset, offset.op_offset + 1)
            row = {**self._rows[key], "id": str(moved)}
            return (
                LogItem(offset, "delete", key, None, self._rows[key]),
                LogItem(inserted, "insert", _key(moved), row, None),
            )
        names = rng.sample(["größe", "note"], rng.randint(1, 2))
        return (LogItem(offset, "update", key, {name: self._text() for name in names}, None),)

    def _row(self, number: int) -> Row:
        return {"id": str(number), "größe": self._text(), "note": self._text()}

    def _text(self) -> str | None:
        return self._rng.choice([None, *_TEXTS, str(self._rng.random())])


def _key(number: int) -> str:
    return f'"public"."t"/{number % _PARTITIONS}/"{number}"'


def rows_after(rows: Rows, items: Iterable[LogItem]) -> Rows:
    """Return the rows after these items; each item must be valid after the ones before."""
    found = dict(rows)
    for item in items:
        key = item.key or ""
        if item.operation == "truncate":
            found.clear()
        elif item.operation == "truncate_partition":
            found = {each: row for each, row in found.items() if not each.startswith(f"{key}/")}
        elif item.operation == "delete":
            found.pop(key, None)
        else:
            found[key] = {**(found.get(key, {}) if item.operation == "update" else {}), **(item.value or {})}
    return found


def touches(items: Iterable[LogItem]) -> set[str] | None:
    """Return the keys that the items change, or ``None`` if any key may change."""
    keys = set[str]()
    for item in items:
        if item.key is None or item.operation == "truncate_partition":
            return None
        keys.add(item.key)
    return keys
