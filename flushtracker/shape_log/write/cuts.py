"""``Cuts``: records in the log up to which LSN it is complete for all shapes of a source, for readers of several
shapes.

The ack of a source is nearly that LSN: every transaction up to it is durable in the log of each shape that it was
routed to. But nothing more is routed to a removed shape, and the ack passes its end without waiting for anyone to read
the removal. So an ack is only a cut for readers that know every removal that the ack has passed. Kafka has confirmed
each removal in ``shapes`` *before* capture publishes the first fragment without the shape. So a program that reads, in
this order,

1. an ack A from the ack table,
2. up to which Kafka offsets the registry table has the entries of ``shapes``,
3. where ``shapes`` ends,

and finds the last two equal, knows that the table has every removal that A has passed. A is then recorded as the cut,
and stays valid, because neither the log nor the registry table ever goes back. A recreated table, or an older copy,
would go back, so the cut names the table and a row that it must have.

An ack may include notifications for another log, or for a later state of this one, if it was restored with its
checkpoint. So A waits until the job has appended everything that ``shape_changes`` had after A was read, and is not
recorded if a shape of the source lacks changes.

*Equal*, not *at least up to where it ended before*: compaction may have deleted an unread removal because a later entry
with its key replaces it. If everything has been read, there is no such entry.

All this holds only if ``shapes`` was only ever compacted. If its beginning was deleted in some other way, that may have
included a removal that no batch has read, and Spark's offsets are past it anyway. Afterwards it is unknown whether the
deleted records had been read. So there are no new cuts from such a topic.
"""

import logging
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from flushtracker.config.streams import SHAPE_CHANGES, SHAPES
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import WriteConfig
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import StateError
from flushtracker.events.topic_rules import deleted_beginning
from flushtracker.shape_log.table.cut_log import CutLog
from flushtracker.shape_log.write.background import PeriodicThread
from flushtracker.shape_log.write.driver import WriteDriver
from flushtracker.shape_log.write.read_offsets import ReadOffsets
from flushtracker.spark.hadoop_files import checkpoint_path
from flushtracker.spark.kafka_admin import KafkaAdmin
from flushtracker.tracking.acks.ack_reader import AckReader

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
_LONGEST_PERIOD_S: Final = 16.0
"""After repeated failures."""

Ends: TypeAlias = Mapping[int, int]
"""Kafka offsets by partition, below which all relevant records are present; 0 for a missing partition."""


@dataclass(frozen=True, slots=True)
class CutInputs:
    """The inputs for cuts; each passes on its storage's errors.

    ``acks`` returns the current ones by source, and ``read`` how far the tables have each stream, ``None`` if unknown.
    ``begins`` and ``ends`` return where a stream begins and ends, ``gaps`` the sources with shapes that lack changes.
    """

    acks: Callable[[], Mapping[str, int]]
    read: Callable[[], Mapping[str, Ends] | None]
    begins: Callable[[str], Ends]
    ends: Callable[[str], Ends]
    gaps: Callable[[], Set[str]] = frozenset


class Cuts:
    """``note`` must commit cuts, and return the new ones."""

    def __init__(self, inputs: CutInputs, note: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        self._inputs, self._note = inputs, note
        self._noted: dict[str, int] = {}
        self._waiting: tuple[dict[str, int], Ends] | None = None
        """Acks, and the ends of ``shape_changes`` afterwards."""

    def advance(self) -> Mapping[str, int]:
        """Record the cuts that can be proved now; return the new ones.

        Raises:
            StateError: the beginning of ``shapes`` was deleted.
        """
        inputs = self._inputs
        if self._waiting is None:
            new = {source: ack for source, ack in inputs.acks().items() if ack > self._noted.get(source, -1)}
            if not new:
                return {}
            self._waiting = new, inputs.ends(SHAPE_CHANGES)
        acks, changes = self._waiting
        read = inputs.read()
        if read is None or any(read[SHAPE_CHANGES].get(partition, 0) < end for partition, end in changes.items()):
            return {}
        entries, ends = read[SHAPES], inputs.ends(SHAPES)
        if any(entries.get(partition, 0) != ends.get(partition, 0) for partition in {*entries, *ends}):
            return {}
        # Last: anything deleted from now on was read.
        _require_whole(inputs.begins(SHAPES))
        self._waiting, gaps = None, inputs.gaps()
        whole = {source: ack for source, ack in acks.items() if source not in gaps}
        moved = self._note(whole)
        self._noted |= whole
        return moved


def _require_whole(begins: Ends) -> None:
    if deleted := deleted_beginning(begins):
        raise StateError(
            f"the topic of shapes {deleted}, maybe also that shapes have ended; readers keep the cuts that they have. "
            "Replace the topic as the runbook says"
        )


class CutsThread(PeriodicThread):
    """Calls :meth:`Cuts.advance`, and ``on_advance`` with new cuts; retries, and logs the same failure once."""

    thread_type = InheritableThread

    def __init__(self, open_cuts: Callable[[ExitStack], Cuts], on_advance: Callable[[Mapping[str, int]], None]) -> None:
        super().__init__("cuts", _PERIOD_S, stop_timeout_s=5.0)
        self._open_cuts, self._on_advance = open_cuts, on_advance
        self._stack = ExitStack()
        self._cuts: Cuts | None = None
        self._last_error = ""

    def run_once(self) -> None:
        try:
            if self._cuts is None:
                self._cuts = self._open_cuts(self._stack)
            moved = self._cuts.advance()
            self._last_error, self._period_s = "", _PERIOD_S
        except Exception as error:  # noqa: BLE001  it must not end the job, which also works without cuts
            self._close()
            if str(error) != self._last_error:
                logger.warning("no cuts of the log, retrying: %s", error)
            self._last_error, self._period_s = str(error), min(2 * self._period_s, _LONGEST_PERIOD_S)
            return
        if moved:
            self._on_advance(moved)
            logger.debug("cuts noted count=%d", len(moved))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._close()

    def _close(self) -> None:
        self._cuts = None
        # The JVM may have exited; the query reports that.
        with suppress(Exception):
            self._stack.close()


def cuts_thread(
    spark: SparkSession,
    config: WriteConfig,
    driver: WriteDriver,
    topic_ids: Mapping[str, str],
    on_advance: Callable[[Mapping[str, int]], None],
) -> CutsThread:
    """The thread for a job whose ``driver`` reads the topics with these ids; ``config`` must have ``acks``.

    ``on_advance`` is called with new cuts.
    """

    def open_cuts(stack: ExitStack) -> Cuts:
        transport, acks_path = config.transport, config.acks
        if not isinstance(transport, KafkaTransport) or acks_path is None:
            raise TypeError("cuts need Kafka and an ack table")
        options, topics = config.sink.storage_options, transport.streams
        acks, registry = AckReader(acks_path, options), RegistryTable(config.sink.shapes, options)
        offsets = ReadOffsets(spark, checkpoint_path(config.state.checkpoint))
        admin = stack.enter_context(KafkaAdmin(spark, transport))

        def last_acks() -> dict[str, int]:
            sources = {source for source, _, _ in registry.entries().entries}
            found = {source: acks.last_ack(source) for source in sources}
            return {source: ack for source, ack in found.items() if ack is not None}

        def read() -> dict[str, Ends] | None:
            found = offsets.after(driver.done_batch_id)
            return None if found is None else {stream: found.get(topic, {}) for stream, topic in topics.items()}

        def begins(stream: str) -> Ends:
            return admin.begins(topics[stream], topic_ids[stream])

        def ends(stream: str) -> Ends:
            return admin.ends(topics[stream], topic_ids[stream])

        inputs = CutInputs(last_acks, read, begins, ends, lambda: driver.gap_sources)
        return Cuts(inputs, CutLog(config.sink.log, registry, options).note)

    return CutsThread(open_cuts, on_advance)
