"""``TransactionWatch``: reports transactions that hide records of a job's topics for too long.

A job reads only committed records. So a transaction that stays open in a partition delays all later records there,
whoever wrote them, until it is committed or aborted. The broker aborts it after its producer's transaction.timeout.ms.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Final, NamedTuple

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from flushtracker.config.transport import KafkaTransport, Transport
from flushtracker.errors import FlushtrackerError
from flushtracker.process.clock import now_ms
from flushtracker.spark.kafka_admin import KafkaAdmin

logger = logging.getLogger(__name__)

NORMAL_MS: Final = 30_000
"""Transactions open for less time are not reported."""
_PERIOD_S: Final = 10.0


class HangingTransaction(NamedTuple):
    """Hides ``hidden_records`` of a partition, including its own, from ``last_stable_offset`` on."""

    topic: str
    partition: int
    last_stable_offset: int
    hidden_records: int
    since_ms: int
    """When it was first seen."""
    producers: str
    """The producers that may have it open, as far as this client may see them."""


class _Hidden(NamedTuple):
    """A partition with records hidden by a transaction from its last stable offset on; another transaction has another
    offset.
    """

    topic: str
    partition: int
    stable_end: int


class HangingTransactions:
    """The state of the topics' ends; :meth:`check` updates it."""

    def __init__(self, admin: KafkaAdmin, topic_ids: dict[str, str], clock_ms: Callable[[], int] = now_ms) -> None:
        self._admin, self._topic_ids, self._clock_ms = admin, topic_ids, clock_ms
        self._since_ms: dict[_Hidden, int] = {}
        self._reported: dict[_Hidden, str] = {}
        """The reported transactions, with their producers."""

    def check(self) -> tuple[HangingTransaction, ...]:
        """The transactions that have been open for too long; logs each once, and its end."""
        at_ms, ends = self._clock_ms(), self._hidden_until()
        self._since_ms = {hidden: self._since_ms.get(hidden, at_ms) for hidden in ends}
        for hidden in [each for each in self._reported if each not in ends]:
            del self._reported[hidden]
            logger.info("transaction ended topic=%s partition=%d last_stable_offset=%d", *hidden)
        late = [hidden for hidden, since_ms in self._since_ms.items() if at_ms - since_ms >= NORMAL_MS]
        for hidden in late:
            if hidden not in self._reported:
                self._reported[hidden] = self._producers(hidden)
                logger.warning(
                    "transaction open topic=%s partition=%d last_stable_offset=%d end=%d open_ms=%d by=%s; nothing "
                    "behind it counts before it is committed or aborted",
                    *(*hidden, ends[hidden], at_ms - self._since_ms[hidden], self._reported[hidden]),
                )
        return tuple(
            HangingTransaction(*each, ends[each] - each.stable_end, self._since_ms[each], self._reported[each])
            for each in sorted(late)
        )

    def _hidden_until(self) -> dict[_Hidden, int]:
        found = {}
        for topic, topic_id in self._topic_ids.items():
            # In this order, so that records committed in between do not count as hidden.
            ends, stable = self._admin.ends(topic, topic_id), self._admin.stable_ends(topic, topic_id)
            for partition, end in ends.items():
                if (stable_end := stable.get(partition, end)) < end:
                    found[_Hidden(topic, partition, stable_end)] = end
        return found

    def _producers(self, hidden: _Hidden) -> str:
        try:
            return ", ".join(self._admin.open_producers(hidden.topic, hidden.partition)) or "unknown"
        except FlushtrackerError:  # This client may not see it.
            return "unknown"


class TransactionWatch:
    """A thread that checks every ten seconds, logs, and passes its findings to ``note``. A context manager.

    While the brokers do not respond, it retries; the query itself reports that.
    """

    def __init__(
        self,
        spark: SparkSession,
        transport: Transport,
        note: Callable[[tuple[HangingTransaction, ...]], None] = lambda _: None,
    ) -> None:
        self._spark, self._transport, self._note = spark, transport, note
        self._stop = Event()
        self._thread = InheritableThread(target=self._run, name="transaction-watch", daemon=True)

    def __enter__(self) -> "TransactionWatch":
        if isinstance(self._transport, KafkaTransport):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            # No failure here may end the job, which does not depend on this; Spark's JVM may have exited.
            with suppress(Exception):
                self._watch()
            self._stop.wait(_PERIOD_S)

    def _watch(self) -> None:
        assert isinstance(self._transport, KafkaTransport)  # noqa: S101  see __enter__
        with KafkaAdmin(self._spark, self._transport) as admin:
            topics = admin.topics(self._transport.streams.values())
            transactions = HangingTransactions(admin, {name: topic.topic_id for name, topic in topics.items()})
            while not self._stop.is_set():
                self._note(transactions.check())
                self._stop.wait(_PERIOD_S)
