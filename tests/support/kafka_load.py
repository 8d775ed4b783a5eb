"""A steady load on the streams of a :class:`KafkaJob`, and the most that may be acknowledged of it at every moment."""

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import Final

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support import in_memory_job
from tests.support.in_memory_job import InMemoryJob
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource

_SHAPES: Final = [f"shape-{number}" for number in range(40)]
_PAUSE_S: Final = 0.1


@dataclass(frozen=True)
class AckFaults:
    """How many acks came before they were allowed, are there more than once, or are less than the one before."""

    early: int = 0
    twice: int = 0
    back: int = 0


class KafkaLoad:
    """Overlapping transactions over forty shapes, whose flushes come late and in any order; a context manager.

    Each batch goes to the core first and to Kafka afterwards: so at no time may the job have acknowledged more than
    :meth:`bound`. ``failure`` is what ended the load before its time.
    """

    def __init__(self, job: KafkaJob, seed: int = 1) -> None:
        self.job = job
        self.source = SampleSource()
        self.failure: BaseException | None = None
        self.transactions = 0
        self._rng = random.Random(seed)  # noqa: S311  a test's load, named by its seed
        self._core = InMemoryJob(in_memory_job.AckTable())
        self._lsn = 2000
        self._owed: list[tuple[str, int, int]] = []
        self._lock = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "KafkaLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; everything that is owed has been flushed."""
        self._stop.set()
        self._thread.join()

    def bound(self) -> int:
        """The greatest LSN that may be acknowledged now, -1 for none."""
        with self._lock:
            return self._core.ack_lsn(self.source.name)

    def look(self) -> tuple[int, AckFaults]:
        """The last ack, -1 without any, and what is wrong with all of them."""
        if self.failure is not None:
            raise self.failure
        rows = sorted(self.job.ack_rows(), key=lambda row: row["acked_at"])
        acks = [row["ack_lsn"] for row in rows]
        bound = self.bound()
        faults = AckFaults(
            early=sum(ack_lsn > bound for ack_lsn in acks),
            twice=len(acks) - len(set(acks)),
            back=sum(after < before for before, after in pairwise(acks)),
        )
        return (acks[-1] if acks else -1), faults

    def assert_sound(self) -> int:
        """Nothing is wrong with any ack; returns the last."""
        ack_lsn, faults = self.look()
        assert faults == AckFaults(), faults
        return ack_lsn

    def _run(self) -> None:
        try:
            while not self._stop.wait(_PAUSE_S):
                self._publish(pay=len(self._owed) * 2 // 3)
            self._publish(pay=-1)
        except BaseException as error:  # noqa: BLE001  raised again by who looks
            self.failure = error

    def _publish(self, pay: int) -> None:
        """A few transactions, and so many of the flushes that are owed; all of them for -1."""
        rng, fragments = self._rng, []
        for _ in range(rng.randrange(1, 4)):
            self._lsn += rng.randrange(40, 400)
            shapes = rng.sample(_SHAPES, rng.randrange(6))
            op = rng.randrange(10) * 2
            fragments.append(self.source.transaction(self._lsn, *shapes, op=op))
            self._owed += [(shape, self._lsn, op) for shape in shapes]
        self.transactions += len(fragments)
        rng.shuffle(self._owed)
        paid = self._owed if pay < 0 else self._owed[:pay]
        self._owed = self._owed[len(paid) :]
        batch: list[FragmentEvent | FlushNotification] = [*fragments]
        batch += [self.source.flushed(*flush) for flush in paid]
        with self._lock:
            self._core.run_batch(batch)
        self.job.write(batch)


def await_ack_after(load: KafkaLoad, ack_lsn: int, *, timeout_s: float = 240) -> int:
    """Wait for an ack greater than ``ack_lsn``, with every look at the acks a check of them all; returns the last."""
    deadline = time.monotonic() + timeout_s
    while (last := load.assert_sound()) <= ack_lsn:
        assert time.monotonic() < deadline, f"no ack after {ack_lsn}, though up to {load.bound()} is allowed"
        time.sleep(1)
    return last
