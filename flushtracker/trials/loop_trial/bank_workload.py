"""The tables of a trial, and its workload: sessions whose transactions the history can check.

All tables are in a schema of the trial's own, and the statements touch nothing else.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from threading import Event, Lock, Thread
from typing import Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.trials.loop_trial.history import ClientTransaction, History
from flushtracker.wal.lsn import parse_lsn

ACCOUNTS: Final = 20
TOTAL: Final = 100 * ACCOUNTS
LEDGER_SHAPES: Final[Mapping[str, Callable[[int], bool]]] = {
    "ledger": lambda _: True,
    "ledger-1": lambda bucket: bucket == 1,
    "ledger-23": lambda bucket: bucket in {2, 3},
}
"""For each shape of the ledger, by id, a test for its buckets."""

ACCOUNTS_SHAPE: Final = "accounts"
_SESSIONS: Final = 2
_LONGEST_PAUSE_S: Final = 0.2
_LARGE_CHANCE: Final = 0.03
_LARGE_PARTS: Final = 400
_ROLLBACK_CHANCE: Final = 0.05
_BUCKETS: Final = 4

_TABLES: Final = (
    "CREATE TABLE {schema}.accounts (id int PRIMARY KEY, balance int NOT NULL)",
    "CREATE TABLE {schema}.ledger (txn bigint, part int, bucket int, note text, PRIMARY KEY (txn, part))",
    "CREATE TABLE {schema}.items (id int PRIMARY KEY, bucket int, note text)",
    # The shapes of this table filter by a column outside the key.
    "ALTER TABLE {schema}.ledger REPLICA IDENTITY FULL",
    "ALTER TABLE {schema}.items REPLICA IDENTITY FULL",
    f"INSERT INTO {{schema}}.accounts SELECT n, {TOTAL // ACCOUNTS} FROM generate_series(1, {ACCOUNTS}) n",  # noqa: S608
)
_ITEMS: Final = (
    "INSERT INTO {schema}.items VALUES ({id}, {bucket}, 'new') ON CONFLICT (id) DO UPDATE SET bucket = {bucket}",
    "UPDATE {schema}.items SET bucket = {bucket}, note = note || '.' WHERE id % 7 = {id} % 7",
    "UPDATE {schema}.items SET id = 1000 - id WHERE id = {id}",
    "DELETE FROM {schema}.items WHERE id = {id}",
    "INSERT INTO {schema}.items SELECT n, n % 4, NULL FROM generate_series(1, 150) n ON CONFLICT (id) DO NOTHING",
)
_TRUNCATE: Final = "TRUNCATE {schema}.items"
_TRUNCATE_CHANCE: Final = 0.02


def create_tables(connection: Connection, schema: str) -> None:
    """Create the schema and its tables; raises ``PostgresError``."""
    for statement in ("CREATE SCHEMA {schema}", *_TABLES):
        rows(connection, statement.format(schema=schema))


def shape_definitions(schema: str) -> list[dict[str, object]]:
    """Return the shapes as in a shapes file; only the accounts have rows before the trial."""
    ledger = {"table": f"{schema}.ledger", "snapshot": False}
    items = {"table": f"{schema}.items", "snapshot": False}
    return [
        {"id": ACCOUNTS_SHAPE, "table": f"{schema}.accounts"},
        {"id": "ledger", **ledger},
        {"id": "ledger-1", **ledger, "where": "bucket = 1"},
        {"id": "ledger-23", **ledger, "where": "bucket IN (2, 3)", "flush": {"interval": "300 ms"}},
        {"id": "items", **items, "replica": "full"},
        {"id": "items-1", **items, "where": "bucket = 1", "flush": {"interval": "2 seconds"}},
    ]


class Workload:
    """A context manager in which sessions run transactions, and note the outcome of each in the history.

    ``lock`` guards the history. ``failure`` is the error that ended a session, or ``None``.
    """

    def __init__(self, connection: Mapping[str, str], schema: str, history: History, lock: Lock, seed: int) -> None:
        self.failure: BaseException | None = None
        self._options = connection
        self._schema = schema
        self._history = history
        self._lock = lock
        self._stop = Event()
        self._threads = [Thread(target=self._run, args=(f"{seed}/{n}",), daemon=True) for n in range(_SESSIONS)]

    def __enter__(self) -> "Workload":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the transactions that are running."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: str) -> None:
        rng = random.Random(seed)  # noqa: S311  reproducible
        try:
            while not self._stop.is_set():
                # A server that restarts ends the session; the next one continues.
                with suppress(PostgresError), closing(connect(self._options)) as connection:
                    while not self._stop.wait(rng.uniform(0, _LONGEST_PAUSE_S)):
                        self._run_transaction(connection, rng)
                self._stop.wait(_LONGEST_PAUSE_S)
        except BaseException as error:  # noqa: BLE001  raised by the trial
            self.failure = error

    def _run_transaction(self, connection: Connection, rng: random.Random) -> None:
        buckets = _buckets(rng)
        parts = {
            shape_id: frozenset(part for part, bucket in enumerate(buckets) if has(bucket))
            for shape_id, has in LEDGER_SHAPES.items()
        }
        transaction = ClientTransaction(parts)
        with self._lock:
            number = len(self._history.transactions) + 1
            self._history.transactions[number] = transaction
        outcome = transaction.outcome
        try:
            rows(connection, "BEGIN")
            for statement in _statements(rng, self._schema, number, buckets):
                rows(connection, statement)
            if rng.random() < _ROLLBACK_CHANCE:
                rows(connection, "ROLLBACK")
                outcome = "rolled back"
            else:
                # Once the server may have read it, only its reply says what happened.
                outcome = "unknown"
                rows(connection, "COMMIT")
                outcome = "committed"
        except PostgresError:
            outcome = "rolled back" if outcome == "running" else outcome
            raise
        finally:
            with self._lock:
                transaction.outcome = outcome
        if outcome == "committed":
            ((end,),) = rows(connection, "SELECT pg_current_wal_insert_lsn()::text")
            with self._lock:
                transaction.end_lsn = parse_lsn(end)


def _buckets(rng: random.Random) -> Sequence[int]:
    """Pick the buckets of a transaction's rows in the ledger."""
    count = _LARGE_PARTS if rng.random() < _LARGE_CHANCE else rng.randint(1, 4)
    return [rng.randrange(_BUCKETS) for _ in range(count)]


def _statements(rng: random.Random, schema: str, number: int, buckets: Sequence[int]) -> list[str]:
    # In the order of their ids, so that two transactions never deadlock.
    (first, second), amount = sorted(rng.sample(range(1, ACCOUNTS + 1), 2)), rng.randint(1, 10)
    ledger = ", ".join(f"({number}, {part}, {bucket}, 'of {number}')" for part, bucket in enumerate(buckets))
    items = [rng.choice(_ITEMS) for _ in range(rng.randrange(3))]
    if rng.random() < _TRUNCATE_CHANCE:
        items.append(_TRUNCATE)
    ids = {"id": rng.randrange(1, 200), "bucket": rng.randrange(_BUCKETS)}
    return [
        f"UPDATE {schema}.accounts SET balance = balance - {amount} WHERE id = {first}",  # noqa: S608  our own numbers
        f"UPDATE {schema}.accounts SET balance = balance + {amount} WHERE id = {second}",  # noqa: S608
        f"INSERT INTO {schema}.ledger VALUES {ledger}",  # noqa: S608
        *(text.format(schema=schema, **ids) for text in items),
    ]
