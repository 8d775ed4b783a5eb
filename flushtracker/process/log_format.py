"""The formats of a program's log: lines of text for people, or one JSON object per line for a log collector.

An event is logged as a format and its values: ``"batch done batch_id=%d source=%s"``. In JSON, each ``name=%…`` of the
format becomes a field with the logged value. The finished text is never parsed, so no value can add or imitate a field.
"""

import json
import logging
import math
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Final, Literal, TypeAlias

from flushtracker.errors import printable

LogFormat: TypeAlias = Literal["text", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")
RESERVED: Final = frozenset({"timestamp", "level", "logger", "message", "exc_info", "exit_code"})
"""The fields that every event has; an event's own fields must have other names."""

_CONVERSION: Final = re.compile(r"%(?:%|[#0 +-]*\d*(?:\.\d+)?(?P<type>[a-zA-Z]))")
_FIELD: Final = re.compile(r"(?<!\S)(?P<name>[a-z][a-z0-9_]*)=(?P<value>[^\s;,:%]*%[^\s;,:]*)")


def log_formatter(log_format: LogFormat) -> logging.Formatter:
    """The formatter of a program's log; each event is one line, whatever the values in it contain."""
    return _JsonFormatter() if log_format == "json" else _OneLineFormatter("%(asctime)s %(levelname)s %(message)s")


def program_line(
    name: str, message: str, log_format: LogFormat, *, exit_code: int | None = None, traceback: str | None = None
) -> str:
    """A message of the program ``name`` to its user outside the log, for example why it exits with ``exit_code``.

    A ``traceback`` is added in JSON. Takes no lock, so that it can be written while a thread hangs.
    """
    if log_format == "text":
        return printable(f"{name}: {message}")
    level = logging.INFO if exit_code is None else logging.ERROR
    record = logging.LogRecord(name, level, "", 0, "%s", (message,), None)
    record.exit_code, record.exc_text = exit_code, traceback
    return _JsonFormatter().format(record)


def event_fields(text: str, values: tuple[object, ...]) -> Iterator[tuple[str, object]]:
    """The fields of an event, from its format and values; none if ``text`` is not a format for exactly these values.

    Without values, ``logging`` does not interpret ``%`` in a text. Other packages' formats may have conversions that
    are unknown here, such as ``%*d``.

    >>> dict(event_fields("took table=%s ranges=%d/%d s=%.1f: %s", ("public.t", 3, 7, 0.26, "a=b")))
    {'table': 'public.t', 'ranges': '3/7', 's': 0.3}
    """
    conversions = [found for found in _CONVERSION.finditer(text) if found["type"] is not None]
    if not values or len(conversions) != len(values):
        return
    places = {found.start(): value for found, value in zip(conversions, values, strict=True)}
    for field in _FIELD.finditer(text):
        form = field["value"]
        own = tuple(value for place, value in places.items() if field.start("value") <= place < field.end("value"))
        yield field["name"], _typed(form, own[0]) if _CONVERSION.fullmatch(form) and own else form % own


def _typed(conversion: str, value: object) -> object:
    """A value for JSON: a number as precise as in the text, and anything else as text."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if isinstance(value, int):
        return value
    return int(value) if conversion.endswith("d") else float(conversion % value)


class _OneLineFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return printable(super().formatMessage(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A message may be a dictionary.
        if isinstance(record.msg, str) and isinstance(record.args, tuple):
            found |= event_fields(record.msg, record.args)
        if (exit_code := getattr(record, "exit_code", None)) is not None:
            found["exit_code"] = exit_code
        traceback = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else None)
        if traceback is not None:
            found["exc_info"] = traceback
        return json.dumps({name: _encodable(each) if isinstance(each, str) else each for name, each in found.items()})


def _encodable(text: str) -> str:
    """``text`` without unpaired surrogates, which strict JSON readers refuse."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
