"""``TakenChanges``: up to which LSN the job has taken all changes of a source, so that it can forget removed shapes.

Capture condenses the entry of a removed shape once the slot is confirmed past the shape's end, and the slot is
confirmed only past what Kafka has confirmed. So when such an entry has been read, the topic has all changes of the
source up to there, of every shape, and none of them will be published again. Then the job looks where the topics end.
Once its batches have read that far, they have taken these changes, and all entries of these shapes.

A thread asks, because Kafka may not answer for a while. The driver tells each batch's tasks what is known by then.
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
class TopicLooks:
    """What the topics and the checkpoint say. Each raises what Kafka or the storage does.

    ``ends``: where each topic ends, by role and partition; ``read``: up to where committed batches have read them,
    ``None`` if that is not known.
    """

    ends: Callable[[], Mapping[str, Mapping[int, int]]]
    read: Callable[[], Mapping[str, Mapping[int, int]] | None]


class TakenChanges:
    """``note`` is called by the driver, and ``advance`` by one other thread; ``lsns`` is for both."""

    def __init__(self) -> None:
        self.lsns: Mapping[str, int] = {}
        """By source, the LSN up to which all changes have been taken."""
        self._confirmed: Mapping[str, int] = {}
        """By source, an LSN past which the slot is confirmed."""
        self._waiting: tuple[Mapping[str, int], Mapping[str, Mapping[int, int]]] | None = None
        """What is taken once batches have read the topics up to these ends."""

    def note(self, entries: Iterable[RegistryEntry]) -> None:
        """A batch has read these entries."""
        found = dict(self._confirmed)
        for entry in entries:
            if isinstance(entry, ShapeEntry) and entry.is_condensed and entry.removed_at is not None:
                found[entry.source] = max(entry.removed_at.tx_offset, found.get(entry.source, -1))
        self._confirmed = found

    @property
    def is_pending(self) -> bool:
        """Whether more is confirmed than is known to have been taken."""
        return any(lsn > self.lsns.get(source, -1) for source, lsn in self._confirmed.items())

    def advance(self, looks: TopicLooks) -> None:
        """Ask what is known to have been taken now."""
        if self._waiting is None:
            # Before the look: the topics have everything up to there.
            confirmed = self._confirmed
            self._waiting = confirmed, looks.ends()
        confirmed, ends = self._waiting
        read = looks.read()
        if read is not None and all(
            read.get(role, {}).get(partition, 0) >= end
            for role, partitions in ends.items()
            for partition, end in partitions.items()
        ):
            self.lsns, self._waiting = confirmed, None


class TakenThread(PeriodicThread):
    """Calls :meth:`TakenChanges.advance` while something is pending; a failure is logged once in a row.

    ``open_looks`` connects to Kafka for one look.
    """

    thread_type = InheritableThread

    def __init__(self, taken: TakenChanges, open_looks: Callable[[], AbstractContextManager[TopicLooks]]) -> None:
        super().__init__("taken changes", PERIOD_S, stop_timeout_s=5.0)
        self._taken, self._open_looks = taken, open_looks
        self._last_error = ""

    def run_once(self) -> None:
        """See :class:`PeriodicThread`."""
        if not self._taken.is_pending:
            return
        try:
            with self._open_looks() as looks:
                self._taken.advance(looks)
            self._last_error = ""
        except Exception as error:  # noqa: BLE001  it must not end the job, which keeps removed shapes until then
            if str(error) != self._last_error:
                logger.warning("removed shapes are kept in the state, retrying: %s", error)
            self._last_error = str(error)
