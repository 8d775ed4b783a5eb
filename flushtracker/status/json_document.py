"""LSNs in the JSON of the documents."""

from flushtracker.wal.lsn import format_lsn, parse_lsn


def lsn_to_json(lsn: int | None) -> str | None:
    """The LSN as text."""
    return None if lsn is None else format_lsn(lsn)


def lsn_from_json(text: str | None) -> int | None:
    """The inverse of :func:`lsn_to_json`; raises ``ValueError``."""
    return None if text is None else parse_lsn(text)
