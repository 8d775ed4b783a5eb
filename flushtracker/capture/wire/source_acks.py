"""``SourceAcks``: the acks of one source, for one connection; warns while there is no ack table."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from flushtracker.config.storage_path import is_uri, local_folder

logger = logging.getLogger(__name__)

_FIRST_INTERVAL_S: Final = 60.0
_LONGEST_INTERVAL_S: Final = 3_600.0


class LastAcks(Protocol):
    """The part of ``AckReader`` that is used here."""

    @property
    def exists(self) -> bool:
        """Whether the last read has found a table."""

    def last_ack(self, source: str) -> int | None: ...


class MissingTableLog:
    """Warns at once, then at growing intervals, while there is no ack table at ``uri``.

    A new system has none until its first ack. A wrong path looks the same, but then the slot is never confirmed, and
    the server keeps its WAL until the disk is full. Kept across connections, so that reconnects do not repeat the
    warning.
    """

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._location = uri if is_uri(uri) else str(Path(uri).absolute())
        self._clock = clock
        self._warnings = 0
        self._next_s = 0.0

    def record(self, *, exists: bool) -> None:
        """Log the outcome of a read, if it is due."""
        if exists:
            if self._warnings:
                logger.info("ack table found acks=%s", self._location)
            self._warnings = 0
            return
        now_s = self._clock()
        if self._warnings and now_s < self._next_s:
            return
        self._next_s = now_s + min(_FIRST_INTERVAL_S * 2**self._warnings, _LONGEST_INTERVAL_S)
        self._warnings += 1
        logger.warning(
            "no ack table yet, so the slot is not confirmed and keeps its WAL acks=%s; %sstorage must be the same "
            "as that of `flushtracker track`",
            self._location,
            "that folder has other files; " if _has_files(self._location) else "",
        )


def _has_files(location: str) -> bool:
    """Whether this is a non-empty local folder, and so not that of a new table."""
    try:
        folder = local_folder(location)
        return folder is not None and any(Path(folder).iterdir())
    except (OSError, ValueError):
        return False


class SourceAcks:
    """The acks of ``source`` only: those of an earlier epoch, for example, do not apply to the slot of a later one.

    For one thread at a time. ``on_read`` is called after each read that found a table.
    """

    def __init__(
        self,
        table: LastAcks,
        source: str,
        missing_table_log: MissingTableLog,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._source = source
        self._missing_table_log = missing_table_log
        self._on_read = on_read

    def last_ack(self) -> int | None:
        ack_lsn = self._table.last_ack(self._source)
        self._missing_table_log.record(exists=self._table.exists)
        if self._table.exists:
            self._on_read()
        return ack_lsn
