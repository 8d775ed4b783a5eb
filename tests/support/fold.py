"""Folds a shape's log: the rows that a reader of its items has."""

from collections.abc import Iterable, Mapping

from flushtracker.wal.changes import LogItem


def fold_items(
    items: Iterable[LogItem], first: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, dict[str, str]]:
    """The rows by key, after those that the shape had ``first``; a column that is NULL or was never sent is left out.

    Raises ``AssertionError`` on an item that no reader could apply.
    """
    rows: dict[str, dict[str, str | None]] = {key: dict(row) for key, row in (first or {}).items()}
    for item in items:
        key = item.key or ""
        if item.operation == "truncate_partition":
            rows = {other: row for other, row in rows.items() if not other.startswith(key + "/")}
            continue
        if item.operation == "truncate":
            rows.clear()
        elif item.operation == "delete":
            rows.pop(key, None)
        elif item.operation == "insert":
            rows[key] = dict(item.value or {})
        else:
            if key not in rows:
                raise AssertionError(f"update of {key}, which was never inserted")
            rows[key].update(item.value or {})
    return {key: {name: text for name, text in row.items() if text is not None} for key, row in rows.items()}
