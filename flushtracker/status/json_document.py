"""What the documents' JSON has in common: LSNs, and fields that are named as those of a dataclass."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flushtracker.wal.lsn import format_lsn, parse_lsn


def lsn_to_json(lsn: int | None) -> str | None:
    """The LSN as text."""
    return None if lsn is None else format_lsn(lsn)


def lsn_from_json(text: str | None) -> int | None:
    """The inverse of :func:`lsn_to_json`; raises ``ValueError``."""
    return None if text is None else parse_lsn(text)


def named_fields(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; a later release may have more. Raises ``KeyError`` if one is missing."""
    return {field.name: document[field.name] for field in fields(kind)}
