"""``Rendering``: the parts of a shape's messages that are not in its log: the table's name, and intervals in ISO 8601.

Electric's clients get intervals in ISO 8601, while capture reads them in PostgreSQL's own style.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.serve.schema import item_type
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.where.sql_values import INTERVAL as INTERVAL_OID
from flushtracker.shapes.where.time_values import INTERVAL
from flushtracker.wal.changes import TableName

_ITEM: Final = re.compile(r'"([^"\\]*)"|[^{},"\s]+')
"""An item of an array of intervals; items have no quotes themselves."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """``relation`` is the part of a message's headers that names the table; ``intervals`` are the columns with
    intervals.
    """

    relation: str = ""
    intervals: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: TableName | None, columns: Iterable[ColumnBinding], table: TableBinding | None) -> "Rendering":
        """The rendering for a shape of the table ``name``; its columns' types are known only with ``table``."""
        relation = "" if name is None else f',"relation":[{",".join(map(encode_basestring, name))}]'
        if table is None:
            return cls(relation)
        types = {each.oid: each for each in table.types}
        found = (each.name for each in columns if item_type(each.type_oid, types)[0] == INTERVAL_OID)
        return cls(relation, tuple(found))

    def value(self, text: str) -> str:
        """A row's value for a message, with converted intervals; raises ``DecodeError`` if it could break the
        message.
        """
        if not text.startswith("{") or not text.endswith("}") or "\n" in text:
            raise DecodeError("value of an item in a shape's log is not a JSON object on one line")
        if not self.intervals:
            return text
        try:
            row = json.loads(text)
        except ValueError:
            raise DecodeError("value of an item in a shape's log is not JSON") from None
        for name in self.intervals:
            if isinstance(row.get(name), str):
                row[name] = _converted(row[name])
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def iso_interval(text: str) -> str:
    """An interval in ISO 8601, as PostgreSQL writes it; other texts, such as infinity, are unchanged.

    >>> iso_interval("1 year 2 mons -3 days +04:05:06.70"), iso_interval("00:00:00")
    ('P1Y2M-3DT4H5M6.7S', 'PT0S')
    """
    found = INTERVAL.fullmatch(text)
    if not found or not text:
        return text
    date = _part(found, "", years="Y", months="M", days="D")
    sign = "-" if found["sign"] == "-" else ""
    time = _part(found, sign, hour="H", minute="M")
    fraction = (found["fraction"] or "").rstrip("0")
    if int(found["second"] or 0) or fraction:
        time += f"{sign}{int(found['second'])}{'.' if fraction else ''}{fraction}S"
    return f"P{date}{'T' if time else ''}{time}" if date or time else "PT0S"


def _part(found: re.Match[str], sign: str, **units: str) -> str:
    numbers = ((int(found[name] or 0), unit) for name, unit in units.items())
    return "".join(f"{sign}{number}{unit}" for number, unit in numbers if number)


def _converted(text: str) -> str:
    """The text of an interval, or of an array of intervals, converted."""
    if text[:1] not in ("{", "["):
        return iso_interval(text)
    return _ITEM.sub(lambda item: item[0] if item[1] == "" else iso_interval(item[1] or item[0]), text)
