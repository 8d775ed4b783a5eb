"""``Trial``: plays capture and the operator for one writer, and reports everything to a judge.

The first rounds send random changes, and each ends with a kill. After them come a start without new changes, a
transaction that stays open, and snapshots that are ahead of the changes. Then a shape begins again, one has a gap, and
one is removed. At the end everything must be notified and stored.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.trials.conformance.judge import Judge, Rule
from flushtracker.trials.conformance.simulated_capture import SimulatedCapture
from flushtracker.trials.conformance.subject import Subject

_POLL_S: Final = 0.01
_DRAIN_S: Final = 0.3
_AFTER_A_GAP: Final = 40
_AHEAD: Final = 3
_BURST: Final = 100
_SLOW_S: Final = 2.0
_OPEN_S: Final = 5.0
_SLICE_S: Final = (0.0005, 0.004)
_STOPPED_S: Final = 0.006


class TrialEndedError(Exception):
    """The trial cannot continue after the violation that the judge has recorded."""


class Trial:
    """One run from a seed. ``timeout_s`` is how long the writer may go without notifying anything new.

    ``handle_kill`` is called after each kill, once the stored data was checked.
    """

    def __init__(
        self,
        config: KafkaConfig,
        subject: Subject,
        judge: Judge,
        *,
        seed: int,
        timeout_s: float,
        handle_kill: Callable[[], None],
    ) -> None:
        self.kills = 0
        self._subject = subject
        self._judge = judge
        self._timeout_s = timeout_s
        self._handle_kill = handle_kill
        self._rng = rng = Random(seed)  # noqa: S311  reproducible
        self._capture = SimulatedCapture(config, judge, rng, with_rows=subject.has_rows)
        self._flushes = TopicFollower(config, config.topics.flushes, only_committed=True)
        self._start_took_s = 1.0

    def run(self, kills: int) -> bool:
        """Run all rounds; returns false if a violation ended the trial early.

        Raises:
            BrokerError: Kafka is unavailable, or refuses a request. ConfigError: one of the writer's commands cannot be
                used.
        """
        # It is not killed before its first notification, because its storage may not exist yet.
        aims = self._notified, self._in_slow_motion, self._after_a_resend, self._at_any_moment
        try:
            self._capture.register(self._timeout_s)
            self._subject.start()
            for number in range(kills):
                aims[number % len(aims)]()
                self._kill()
                self._start()
            self._check_start()
            self._check_open_transaction()
            self._check_snapshots()
            self._check_resync()
            self._check_gap()
            self._check_removal()
            self._settle("live")
            self._kill()
        except TrialEndedError:
            return False
        finally:
            self._subject.kill()
            self._capture.close()
            self._flushes.close()
        return True

    # When to kill

    def _notified(self) -> None:
        """Just after something new was notified for the first, second or fifth time."""
        self._send_until_notified(self._rng.choice([1, 1, 2, 5]))

    def _after_a_resend(self) -> None:
        """Just after the first new notification that follows a resend."""
        self._capture.reconnect_all()
        self._send_until_notified(1)

    def _at_any_moment(self) -> None:
        """At a random time, perhaps before it has started completely, and after a reader has read."""
        end_s = time.monotonic() + self._rng.uniform(0, 1.5 * self._start_took_s)
        while time.monotonic() < end_s:
            self._capture.send_something()
            self._poll()
        self._read("while it runs")

    def _in_slow_motion(self) -> None:
        """Within a few milliseconds of the writer's own running time after a notification.

        It runs in short time slices, and is suspended between them while its notifications are read.
        """
        self._send_until_notified(1)
        if self._rng.random() < 0.7:
            self._capture.reconnect_all()
        for _ in range(self._rng.randint(1, _BURST)):
            self._capture.send_something()
        progress, end_s = self._judge.progress, time.monotonic() + _SLOW_S
        while self._judge.progress == progress and time.monotonic() < end_s:
            self._subject.run_for(self._rng.uniform(*_SLICE_S))
            self._poll(_STOPPED_S)

    def _send_until_notified(self, advances: int) -> None:
        progress, started = self._judge.progress, time.monotonic()
        while self._judge.progress < progress + advances:
            if time.monotonic() >= started + self._timeout_s:
                fact = f"nothing new is notified for {self._timeout_s:g} s, while changes are sent"
                self._judge.violate("live", fact)
                raise TrialEndedError
            self._capture.send_something()
            self._poll()
        self._start_took_s = min(time.monotonic() - started, self._timeout_s / 2)

    # Checks after the kills

    def _check_start(self) -> None:
        self._settle("live")
        self._kill()
        self._start()
        self._await("again", self._judge.not_notified_again)

    def _check_open_transaction(self) -> None:
        """Send a part of a transaction, and kill the writer some time later: it may notify that part, but not the rest.

        A writer of whole transactions notifies nothing of it, so there is a limit to the wait.
        """
        sent, end_s = self._capture.open_a_transaction(self._timeout_s), time.monotonic() + _OPEN_S
        while not self._judge.has_notified(sent) and time.monotonic() < end_s:
            self._poll()
        self._kill()
        self._start()

    def _check_snapshots(self) -> None:
        """Take a torn snapshot, then one that contains changes which are sent later.

        A writer that applies these changes again shows older rows for a while. They are not sent all at once, which
        would hide the mistake.
        """
        if not self._subject.has_rows:
            return
        self._capture.send_torn_and_whole_snapshots(_AHEAD)
        self._await("snapshot", lambda: self._judge.rows.missing(self._subject.rows()))
        self._await("rows", lambda: self._judge.row_faults(self._subject.rows(), newest=True))
        # A snapshot does not name its writer, so a writer may show it until it has read the shape's entry.
        self._await("own", lambda: self._judge.rows_of_others(self._subject.rows()))
        for left in range(_AHEAD, -1, -1):
            self._capture.complete(self._timeout_s, leave=left)
            self._await("live", self._judge.behind)
            self._show("while changes arrive that its snapshots contain", newest=True)

    def _check_resync(self) -> None:
        """Begin a shape again. Its changes arrive before its snapshot, with a kill between the two."""
        if not self._subject.has_rows:
            return
        self._capture.begin_a_shape_again()
        for _ in range(_AFTER_A_GAP):
            self._capture.send_fragment()
        self._settle("resync")
        self._kill()
        self._start()
        self._capture.send_torn_and_whole_snapshots(0)
        self._await("snapshot", lambda: self._judge.rows.missing(self._subject.rows()))
        self._await("rows", lambda: self._judge.row_faults(self._subject.rows(), newest=True))
        self._settle("live")

    def _check_gap(self) -> None:
        """Drop one event of a shape: the other shapes must continue, also after a kill, until capture reconnects.

        After the kill the writer finds the gap again. So when capture reconnects, the gap must close in a running
        writer.
        """
        shape = self._capture.lose_an_event()
        for kills in range(2):
            if kills:
                self._kill()
                self._start()
            for _ in range(_AFTER_A_GAP):
                self._capture.send_fragment()
            self._settle("others")
        self._capture.heal(shape)
        self._settle("heals")

    def _check_removal(self) -> None:
        self._capture.remove_a_shape()
        self._settle("removal")

    def _settle(self, rule: Rule) -> None:
        """Send all transactions to their end, and wait until the writer has notified them."""
        self._capture.complete(self._timeout_s)
        self._await(rule, self._judge.behind)
        self._read("while it runs")

    def _await(self, rule: Rule, missing: Callable[[], list[str]]) -> None:
        """Wait until nothing is missing. After a timeout without progress, the first missing thing violates the
        rule.
        """
        progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
        while found := missing():
            self._poll()
            if self._judge.progress != progress:
                progress, deadline = self._judge.progress, time.monotonic() + self._timeout_s
            if time.monotonic() >= deadline:
                self._judge.violate(rule, f"{found[0]}, and nothing more for {self._timeout_s:g} s")
                return

    # The writer

    def _start(self) -> None:
        self._judge.restarted()
        self._subject.start()

    def _kill(self) -> None:
        """Kill the writer, and check what it has stored and shows against what it has notified.

        A simulated power failure may follow the kill.
        """
        self._subject.kill()
        self.kills += 1
        when = f"after kill {self.kills}"
        left = self._subject.lose_power(self.kills, self._rng)
        lines = (
            self._subject.dump() if left is None else self._dump_of_what_is_left(when := f"{when}, which left {left}")
        )
        while self._poll(_DRAIN_S):
            pass
        self._judge.dumped(lines, when, "durable" if left is None else "power", self._subject.rows())
        if "power" in self._judge.violations:
            # What is lost now would also be missing after each later kill.
            raise TrialEndedError
        self._read(when)
        self._handle_kill()

    def _dump_of_what_is_left(self, when: str) -> list[str]:
        """Run the dump command; after a power failure, storage that it cannot read counts as empty."""
        try:
            return self._subject.dump()
        except ConfigError as error:
            self._judge.violate("power", f"{when}, {error}")
            raise TrialEndedError from error

    def _read(self, when: str) -> None:
        """Run the read command; everything notified so far must be visible to it."""
        if (lines := self._subject.read()) is not None:
            self._judge.seen(lines, when)
        self._show(when)

    def _show(self, when: str, *, newest: bool = False) -> None:
        for fault in self._judge.row_faults(self._subject.rows(), newest=newest):
            self._judge.violate("rows", f"{when}, {fault}")

    def _poll(self, timeout_s: float = _POLL_S) -> bool:
        """Read new flush notifications; returns whether there were any."""
        self._capture.poll()
        records = self._flushes.records(timeout_s)
        for record in records:
            self._judge.read(record)
        failure = self._subject.failure()
        if failure is not None:
            self._judge.violate("runs", str(failure))
            raise TrialEndedError
        return bool(records)
