"""A steady load on the streams of a :class:`KafkaJob`, and the greatest LSN that may be acknowledged at any moment."""

import random
from threading import Lock
from typing import Final

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support.ack_rows import AckRows
from tests.support.background import Background
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
from tests.support.simulated_job import SimulatedJob
from tests.support.waiting import wait_until

_SHAPES: Final = [f"shape-{number}" for number in range(40)]
_PAUSE_S: Final = 0.1


class KafkaLoad(Background):
    """A context manager that publishes overlapping transactions over forty shapes, with late and unordered flushes.

    Each batch goes through the core before it is published, so the job must never have acknowledged more than
    :meth:`bound`.
    """

    def __init__(self, job: KafkaJob, seed: int = 1) -> None:
        super().__init__(self._play)
        self.job = job
        self.source = SampleSource()
        self.transactions = 0
        self._rng = random.Random(seed)  # noqa: S311  a reproducible test load
        self._core = SimulatedJob(AckRows())
        self._lsn = 2000
        self._unflushed: list[tuple[str, int, int]] = []
        self._lock = Lock()

    def bound(self) -> int:
        """The greatest LSN that may be acknowledged now; -1 if there is none."""
        with self._lock:
            return self._core.ack_lsn(self.source.name)

    def assert_sound(self) -> int:
        """Assert that no ack is early, a duplicate, or less than the one before; return the last one, or -1."""
        self.raise_failure()
        acks = [row["ack_lsn"] for row in sorted(self.job.ack_rows(), key=lambda row: row["acked_at"])]
        assert acks == sorted(set(acks))
        assert not acks or acks[-1] <= self.bound()
        return acks[-1] if acks else -1

    def _play(self) -> None:
        """Until it is stopped; then all outstanding flushes are published."""
        while not self.stopping.wait(_PAUSE_S):
            self._publish(flush_count=len(self._unflushed) * 2 // 3)
        self._publish(flush_count=-1)

    def _publish(self, flush_count: int) -> None:
        """Publish a few transactions and ``flush_count`` of the outstanding flushes, or all of them for -1."""
        rng, fragments = self._rng, []
        for _ in range(rng.randrange(1, 4)):
            self._lsn += rng.randrange(40, 400)
            shapes = rng.sample(_SHAPES, rng.randrange(6))
            op = rng.randrange(10) * 2
            fragments.append(self.source.transaction(self._lsn, *shapes, op=op))
            self._unflushed += [(shape, self._lsn, op) for shape in shapes]
        self.transactions += len(fragments)
        rng.shuffle(self._unflushed)
        flushed = self._unflushed if flush_count < 0 else self._unflushed[:flush_count]
        self._unflushed = self._unflushed[len(flushed) :]
        batch: list[FragmentEvent | FlushNotification] = [*fragments]
        batch += [self.source.flushed(*flush) for flush in flushed]
        with self._lock:
            self._core.run_batch(batch)
        self.job.write(batch)


def await_ack_after(load: KafkaLoad, ack_lsn: int, *, timeout_s: float = 240) -> int:
    """Wait for an ack greater than ``ack_lsn`` and return the last one; every poll checks all acks."""

    def new_ack() -> int | None:
        last = load.assert_sound()
        return last if last > ack_lsn else None

    return wait_until(new_ack, f"an ack after {ack_lsn}; {load.bound()} was allowed at the start", timeout_s, pause_s=1)
