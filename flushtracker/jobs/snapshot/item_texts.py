"""``ItemTexts``: key and value of an insert, as :mod:`flushtracker.shapes.log_items` makes them of the stream's rows.

This is a faster way to the same texts, without a change, an item and a mapping for each row, and without the packages
that a shape's condition needs: it runs on executors.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from flushtracker.postgres.copy_text import values_of
from flushtracker.shapes.item_key import key_values

_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """The columns of a shape's items, in the order of a table's rows, those of its key, and how its keys begin."""

    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    key_prefix: str


class ItemTexts:
    """Makes the texts of rows that have just these ``columns``."""

    def __init__(self, columns: ItemColumns) -> None:
        names = (_quoted(name).replace("%", "%%") for name in columns.columns)
        self._value = "{" + ",".join(f"{name}:%s" for name in names) + "}"
        self._key_prefix = columns.key_prefix
        self._key = [columns.columns.index(name) for name in columns.key_columns]
        self._is_empty = not columns.columns

    def of(self, lines: Iterable[str]) -> tuple[list[str], list[str]]:
        """The keys and the values of rows in COPY's text format, each without its line break."""
        keys, values = list[str](), list[str]()
        template, prefix, places, quoted = self._value, self._key_prefix, self._key, _quoted
        for line in lines:
            if "\\" in line:
                row = values_of(line)
                values.append(template % tuple(["null" if text is None else quoted(text) for text in row]))
                keys.append(prefix + key_values([row[place] for place in places]))
            else:
                # No value is NULL, and none is escaped.
                texts = [] if self._is_empty else line.split("\t")
                values.append(template % tuple(map(quoted, texts)))
                keys.append(prefix + key_values([texts[place] for place in places]))
        return keys, values
