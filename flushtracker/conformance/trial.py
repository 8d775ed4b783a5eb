"""``Trial``: plays capture and the operator for a writer, and reports what happens to a judge.

The first rounds send random changes, and each ends with a kill at a random moment. Then follow a start without new
changes, a gap in one shape, and a removed shape. At the end, everything must be notified and stored.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Final

from flushtracker.conformance.judge import Judge, Rule, Shape
from flushtracker.conformance.simulated_source import SimulatedConnection, SimulatedSource
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


class _TrialEndedError(Exception):
    """The writer broke a rule without which the trial cannot continue. The judge has the violation."""


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
        self._sources = [SimulatedSource(name, _SHAPES, rng) for name in _SOURCES]
        self._connections = [SimulatedConnection(source, 0, rng) for source in self._sources]
        self._confirmed = [0] * len(_SOURCES)
        self._recent: list[ShapeChangesEvent] = []
        self._start_took_s = 1.0

    def run(self, kills: int) -> bool:
        """Play everything; returns false if it ended early, because a rule is broken without which it cannot continue.

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
        except _TrialEndedError:
            return False
        finally:
            self._subject.kill()
            self._publisher.close()
            self._flushes.close()
        return True

    # What is played

    def _register(self) -> None:
        for source in self._sources:
            before = LogOffset.just_before(source.first_lsn)
            self._publish(SourceEntry(source.name, before, publication="conformance"))
            for shape_id in source.shape_ids:
                self._publish(_entry((source.name, shape_id), before))
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
                raise _TrialEndedError
        self._kill()
        self._start()

    def _check_start(self) -> None:
        self._settle("live")
        self._kill()
        self._start()
        self._await("again", self._judge.not_said_again)

    def _check_gap(self) -> None:
        """Lose one event of a shape. The other shapes must continue, also after a kill, until capture reconnects."""
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
        """Remove a shape while the writer has not read some of its changes yet."""
        source, shape_id = self._sources[1], _SHAPES[-1]
        before, end = LogOffset.just_before(source.first_lsn), LogOffset(source.next_lsn, 0)
        self._judge.removed.add((source.name, shape_id))
        removed = _entry((source.name, shape_id), before, removed_at=end)
        self._publish(removed)
        for _ in range(10):
            self._send_fragment(1)
        source.shape_ids.remove(shape_id)
        self._publish(removed.condensed())
        for _ in range(10):
            self._send_something()
        self._settle("removal")

    # Capture

    def _send_something(self) -> None:
        """Send the next fragment of a source; sometimes send a duplicate, or reconnect, which resends."""
        number, chance = self._rng.randrange(len(_SOURCES)), self._rng.random()
        if chance < 0.05:
            self._reconnect(number)
        elif chance < 0.15 and self._recent:
            self._send(self._rng.choice(self._recent))
        else:
            self._send_fragment(number)

    def _send_fragment(self, number: int) -> None:
        """Send the next fragment of the source with this number."""
        for event in self._connections[number].next_events():
            self._send(event)

    def _send(self, event: ShapeChangesEvent) -> None:
        self._judge.sent(event)
        self._publish(event)
        self._recent = [*self._recent[-_RECENT_EVENTS:], event]

    def _reconnect(self, number: int) -> None:
        """Reconnect at the confirmed LSN, the first transaction that is not completely notified, or a little before."""
        source, judge = self._sources[number], self._judge
        confirmed = self._confirmed[number]
        while confirmed < source.committed and judge.has_notified(source.last_items(confirmed)):
            confirmed += 1
        self._confirmed[number] = confirmed
        first = self._rng.randint(max(0, confirmed - 3), confirmed)
        self._connections[number] = SimulatedConnection(source, first, self._rng)

    def _publish(self, event: Event) -> None:
        record = record_of(event)
        self._publisher.publish(self._config.topics.by_role()[record.stream], record.key, record.value)

    # The writer

    def _start(self) -> None:
        self._judge.restarted()
        self._subject.start()

    def _kill(self) -> None:
        """Kill the writer, and compare what it has stored with what it has notified."""
        self._subject.kill()
        self.kills += 1
        lines = self._subject.dump()
        while self._poll(_DRAIN_S):
            pass
        self._judge.dumped(lines, f"after kill {self.kills}")

    def _settle(self, rule: Rule) -> None:
        """Send all transactions completely; the writer must notify them."""
        for connection in self._connections:
            while not connection.is_at_end:
                for event in connection.next_events():
                    self._send(event)
        self._publisher.flush(self._timeout_s)
        self._await(rule, self._judge.behind)

    def _await(self, rule: Rule, missing: Callable[[], list[str]]) -> None:
        """Wait until nothing is missing; after a timeout, the first thing missing violates the rule."""
        progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
        while found := missing():
            self._poll()
            if self._judge.progress != progress:
                progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
            if time.monotonic() >= deadline:
                self._judge.violate(rule, f"{found[0]}, and nothing more for {self._timeout_s:g} s")
                return

    def _poll(self, timeout_s: float = _POLL_S) -> bool:
        """Read what the writer has notified; returns whether there was anything."""
        self._publisher.poll()
        records = self._flushes.records(timeout_s)
        for record in records:
            self._judge.read(record)
        failure = self._subject.failure()
        if failure is not None:
            self._judge.violate("runs", str(failure))
            raise _TrialEndedError
        return bool(records)


def _entry(shape: Shape, starts_after: LogOffset, removed_at: LogOffset | None = None) -> ShapeEntry:
    source, shape_id = shape
    return ShapeEntry(source, ShapeDefinition(shape_id, ("public", "t")), 16_400, starts_after, removed_at)
