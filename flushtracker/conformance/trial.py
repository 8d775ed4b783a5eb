"""``Trial``: plays capture and the operator around a writer, and tells a judge what happens.

First rounds of random changes, each ended by a kill at a random moment; then a start without anything new; a gap in one
shape; a removed shape; and the end, where everything must be notified and stored.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Final

from flushtracker.conformance.history import Connection, SourceHistory
from flushtracker.conformance.judge import Judge, Rule, Shape
from flushtracker.conformance.subject import Subject
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import Event, record_of
from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset

_SOURCES: Final = ("7301/1/conformance", "7302/1/conformance")
_SHAPES: Final = ("users", 'naïve "q"', "orders")
_POLL_S: Final = 0.01
_DRAIN_S: Final = 0.3
_RECENT_EVENTS: Final = 50
_AFTER_A_GAP: Final = 40


class _CannotGoOnError(Exception):
    """The writer has broken a rule without which the trial cannot go on; the judge knows it."""


class Trial:
    """One run, from a seed. ``timeout_s`` is how long the writer may take without notifying anything new."""

    def __init__(self, config: KafkaConfig, subject: Subject, judge: Judge, *, seed: int, timeout_s: float) -> None:
        self.kills = 0
        self._config = config
        self._subject = subject
        self._judge = judge
        self._timeout_s = timeout_s
        self._rng = rng = Random(seed)  # noqa: S311  reproducible
        self._publisher = KafkaPublisher(config)
        self._flushes = TopicFollower(config, config.topics.flushes)
        self._histories = [SourceHistory(source, _SHAPES, rng) for source in _SOURCES]
        self._connections = [Connection(history, 0, rng) for history in self._histories]
        self._confirmed = [0] * len(_SOURCES)
        self._recent: list[ShapeChangesEvent] = []
        self._start_took_s = 1.0

    def run(self, kills: int) -> bool:
        """Play everything; returns false if it ended early, because a rule is broken without which it cannot go on.

        Raises:
            BrokerError: Kafka is unavailable, or refuses a request.
            ConfigError: one of the writer's commands cannot be used.
        """
        try:
            self._register()
            self._subject.start()
            for _ in range(kills):
                self._play_round()
            self._check_start()
            self._check_gap()
            self._check_removal()
            self._settle("live")
            self._kill()
        except _CannotGoOnError:
            return False
        finally:
            self._subject.kill()
            self._publisher.close()
            self._flushes.close()
        return True

    # What is played

    def _register(self) -> None:
        for history in self._histories:
            before = LogOffset.just_before(history.first_lsn)
            self._publish(SourceEntry(history.source, before))
            for shape_id in history.shape_ids:
                self._publish(_entry((history.source, shape_id), before))
        self._publisher.flush(self._timeout_s)

    def _play_round(self) -> None:
        """Send changes until the writer is killed: once it has notified something new, or at any other moment.

        Before its first notification it is not killed, because its storage may not exist yet.
        """
        judge, started = self._judge, time.monotonic()
        progress, advances = judge.progress, self._rng.choice([0, 1, 1, 2, 5])
        advances = max(advances, 1 - self.kills)
        delay_s = self._rng.uniform(0, 1.5 * self._start_took_s)
        while True:
            self._send_something()
            self._poll()
            now = time.monotonic()
            if advances and judge.progress >= progress + advances:
                self._start_took_s = min(now - started, self._timeout_s / 2)
                break
            if not advances and now >= started + delay_s:
                break
            if now >= started + self._timeout_s:
                judge.violate("live", f"nothing new is notified for {self._timeout_s:g} s, while changes are sent")
                raise _CannotGoOnError
        self._kill()
        self._start()

    def _check_start(self) -> None:
        self._settle("live")
        self._kill()
        self._start()
        self._await("again", self._judge.not_said_again)

    def _check_gap(self) -> None:
        """Lose one event of a shape. The others go on, over a kill too, until capture connects again."""
        shape = self._lose_an_event()
        for _ in range(2):
            for _ in range(_AFTER_A_GAP):
                self._send_fragment(self._rng.randrange(len(_SOURCES)))
            self._settle("others")
            self._kill()
            self._start()
        self._judge.healed(shape)
        self._reconnect(0)
        self._settle("heals")

    def _lose_an_event(self) -> Shape:
        while True:
            lost = None
            for event in self._connections[0].next_events():
                if lost is None and event.items and not event.start:
                    lost = event.source, event.shape_id
                    self._judge.lost(lost)
                else:
                    self._send(event)
            if lost is not None:
                return lost

    def _check_removal(self) -> None:
        """Remove a shape, some of whose changes are still to be read."""
        history, shape_id = self._histories[1], _SHAPES[-1]
        before, end = LogOffset.just_before(history.first_lsn), LogOffset(history.next_lsn, 0)
        self._judge.removed.add((history.source, shape_id))
        self._publish(_entry((history.source, shape_id), before, removed_at=end))
        for _ in range(10):
            self._send_fragment(1)
        history.shape_ids.remove(shape_id)
        for _ in range(10):
            self._send_something()
        self._settle("removal")

    # Capture

    def _send_something(self) -> None:
        """The next fragment of a source; now and then a duplicate, or a new connection, which resends."""
        source, chance = self._rng.randrange(len(_SOURCES)), self._rng.random()
        if chance < 0.05:
            self._reconnect(source)
        elif chance < 0.15 and self._recent:
            self._send(self._rng.choice(self._recent))
        else:
            self._send_fragment(source)

    def _send_fragment(self, source: int) -> None:
        for event in self._connections[source].next_events():
            self._send(event)

    def _send(self, event: ShapeChangesEvent) -> None:
        self._judge.sent(event)
        self._publish(event)
        self._recent = [*self._recent[-_RECENT_EVENTS:], event]

    def _reconnect(self, source: int) -> None:
        """Connect again, from the confirmed LSN or before: the first transaction that is not wholly notified."""
        history, judge = self._histories[source], self._judge
        confirmed = self._confirmed[source]
        while confirmed < history.committed and judge.has_notified(history.last_items(confirmed)):
            confirmed += 1
        self._confirmed[source] = confirmed
        first = self._rng.randint(max(0, confirmed - 3), confirmed)
        self._connections[source] = Connection(history, first, self._rng)

    def _publish(self, event: Event) -> None:
        record = record_of(event)
        self._publisher.publish(self._config.topics.by_role()[record.stream], record.key, record.value)

    # The writer

    def _start(self) -> None:
        self._judge.restarted()
        self._subject.start()

    def _kill(self) -> None:
        """Kill the writer, and compare what it has stored with all that it had notified."""
        self._subject.kill()
        self.kills += 1
        lines = self._subject.dump()
        while self._poll(_DRAIN_S):
            pass
        self._judge.dumped(lines, f"after kill {self.kills}")

    def _settle(self, rule: Rule) -> None:
        """Send all transactions to their ends; the writer must notify them."""
        for connection in self._connections:
            while not connection.is_at_end:
                for event in connection.next_events():
                    self._send(event)
        self._publisher.flush(self._timeout_s)
        self._await(rule, self._judge.behind)

    def _await(self, rule: Rule, missing: Callable[[], list[str]]) -> None:
        """Wait until nothing is missing; otherwise the first violates the rule."""
        progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
        while found := missing():
            self._poll()
            if self._judge.progress != progress:
                progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
            if time.monotonic() >= deadline:
                self._judge.violate(rule, f"{found[0]}, and nothing more for {self._timeout_s:g} s")
                return

    def _poll(self, timeout_s: float = _POLL_S) -> bool:
        """Read what the writer has notified; whether there was anything."""
        self._publisher.poll()
        records = self._flushes.records(timeout_s)
        for record in records:
            self._judge.read(record)
        failure = self._subject.failure()
        if failure is not None:
            self._judge.violate("runs", str(failure))
            raise _CannotGoOnError
        return bool(records)


def _entry(shape: Shape, starts_after: LogOffset, removed_at: LogOffset | None = None) -> ShapeEntry:
    source, shape_id = shape
    return ShapeEntry(source, ShapeDefinition(shape_id, ("public", "t")), 16_400, starts_after, removed_at)
