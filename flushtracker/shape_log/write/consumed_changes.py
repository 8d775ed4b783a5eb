"""``ConsumedChanges``: the LSN up to which the job has read all changes of a source, to forget removed shapes.

Capture condenses the entry of a removed shape once the slot is confirmed past the shape's end, and the slot is
confirmed only past what Kafka has confirmed. So when such an entry has been read, the topic has all changes of the
source up to there, for every shape, and none of them will be published again. The job then gets the ends of the topics.
Once its batches have read that far, they have read these changes, and all entries of these shapes.

A thread does this, because Kafka may not respond for a while. The driver passes the result to each batch's tasks.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from pyspark import InheritableThread

from flushtracker.events.registry_events import RegistryEntry, ShapeEntry
from flushtracker.shape_log.write.background import PeriodicThread

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The state of the topics and the checkpoint. Each function passes on errors of Kafka or the storage.

    ``ends`` returns where each topic ends, by role and partition; ``read`` up to where committed batches have read
    them, ``None`` if unknown.
    """

    ends: Callable[[], Mapping[str, Mapping[int, int]]]
    read: Callable[[], Mapping[str, Mapping[int, int]] | None]


class ConsumedChanges:
    """``note`` is called by the driver, and ``advance`` by one other thread; ``lsns`` is for both."""

    def __init__(self) -> None:
        self.lsns: Mapping[str, int] = {}
        """By source, the LSN up to which all changes have been read."""
        self._confirmed: Mapping[str, int] = {}
        """By source, an LSN past which the slot is confirmed."""
        self._waiting: tuple[Mapping[str, int], Mapping[str, Mapping[int, int]]] | None = None
        """The LSNs that are reached once batches have read the topics up to these ends."""

    def note(self, entries: Iterable[RegistryEntry]) -> None:
        found = dict(self._confirmed)
        for entry in entries:
            if isinstance(entry, ShapeEntry) and entry.is_condensed and entry.removed_at is not None:
                found[entry.source] = max(entry.removed_at.tx_offset, found.get(entry.source, -1))
        self._confirmed = found

    @property
    def is_pending(self) -> bool:
        """Whether more is confirmed than is known to have been read."""
        return any(lsn > self.lsns.get(source, -1) for source, lsn in self._confirmed.items())

    def advance(self, offsets: TopicOffsets) -> None:
        """Update ``lsns`` from the topics and the checkpoint."""
        if self._waiting is None:
            # Before getting the ends, because the topics have everything up to there.
            confirmed = self._confirmed
            self._waiting = confirmed, offsets.ends()
        confirmed, ends = self._waiting
        read = offsets.read()
        if read is not None and all(
            read.get(role, {}).get(partition, 0) >= end
            for role, partitions in ends.items()
            for partition, end in partitions.items()
        ):
            self.lsns, self._waiting = confirmed, None


class ConsumedThread(PeriodicThread):
    """Calls :meth:`ConsumedChanges.advance` while something is pending; a failure is logged once in a row.

    ``open_offsets`` connects to Kafka for one look.
    """

    thread_type = InheritableThread

    def __init__(
        self, consumed: ConsumedChanges, open_offsets: Callable[[], AbstractContextManager[TopicOffsets]]
    ) -> None:
        super().__init__("consumed changes", PERIOD_S, stop_timeout_s=5.0)
        self._consumed, self._open_offsets = consumed, open_offsets
        self._last_error = ""

    def run_once(self) -> None:
        if not self._consumed.is_pending:
            return
        try:
            with self._open_offsets() as offsets:
                self._consumed.advance(offsets)
            self._last_error = ""
        except Exception as error:  # noqa: BLE001  it must not end the job, which keeps removed shapes until then
            if str(error) != self._last_error:
                logger.warning("removed shapes are kept in the state, retrying: %s", error)
            self._last_error = str(error)
