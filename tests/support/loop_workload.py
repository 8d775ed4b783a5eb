"""The workload of the whole loop: tables, the shapes on them, and random transactions from several sessions."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final, TypeAlias

import psycopg2

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_rig import run_in_transaction, shape
from tests.support.truth import Row

TABLES: Final = (
    "CREATE TABLE orders (id serial PRIMARY KEY, bucket int, note text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE users (id int PRIMARY KEY, note text)",
    "CREATE TABLE audit (id bigserial PRIMARY KEY, said text)",
    "CREATE TABLE unwanted (id serial PRIMARY KEY, note text)",
)
KEY: Final = "id"
"""The key of every table."""


Matches: TypeAlias = Callable[[Row], bool]


@dataclass(frozen=True)
class LoopShape:
    """A shape on a table of the schema ``public``; ``matches`` says in Python what its ``where`` says in SQL.

    ``inner``: the same of each table that subqueries of it read. Its log has these rows, too.
    """

    id: str
    table: str
    matches: Matches = lambda _: True
    fields: dict[str, Any] = field(default_factory=dict)
    inner: Mapping[str, Matches] = field(default_factory=dict)

    @property
    def definition(self) -> dict[str, Any]:
        return shape(self.id, f"public.{self.table}", snapshot=bool(self.inner), **self.fields)

    @property
    def logged(self) -> Mapping[str, Matches]:
        """The rows that its log has, by table."""
        return {self.table: self.matches, **self.inner}


JOINED: Final = LoopShape(
    "orders-joined",
    "orders",
    fields={"where": "note IN (SELECT note FROM public.users WHERE id > 7)"},
    inner={"users": lambda row: int(row["id"] or 0) > 7},
)
"""Its rows come and go with those of another table, too."""
SHAPES: Final = (
    LoopShape("orders", "orders", fields={"replica": "full"}),
    LoopShape("orders-1", "orders", lambda row: row.get("bucket") == "1", {"where": "bucket = 1"}),
    LoopShape(
        "orders-23",
        "orders",
        lambda row: row.get("bucket") in {"2", "3"},
        {"where": "bucket IN (2, 3)", "flush": {"bytes": 4096, "interval": "300 ms", "chunk_bytes": 16384}},
    ),
    LoopShape("users", "users"),
    LoopShape(
        "users-low",
        "users",
        lambda row: int(row["id"] or 0) < 100,
        {"where": "id < 100", "flush": {"interval": "2 seconds"}},
    ),
    LoopShape("audit", "audit", fields={"columns": ["id", "said"], "depends_on": ["users"]}),
    JOINED,
)

FOLDED: Final = ("orders", "orders-1", "users", JOINED.id)
"""The shapes of whose history little is kept."""

_STATEMENTS: Final = (
    "INSERT INTO orders (bucket, note) VALUES ({bucket}, 'new')",
    "INSERT INTO orders (bucket, note) SELECT {bucket}, 'many' FROM generate_series(1, 5)",
    "UPDATE orders SET bucket = {bucket}, note = note || '.' WHERE id = (SELECT max(id) - {few} FROM orders)",
    "UPDATE orders SET id = nextval('orders_id_seq') WHERE id = (SELECT max(id) - {few} FROM orders)",
    "DELETE FROM orders WHERE id = (SELECT max(id) - {few} FROM orders)",
    "INSERT INTO users VALUES ({user}, 'new') ON CONFLICT (id) DO UPDATE SET note = users.note || '.'",
    "UPDATE users SET note = NULL WHERE id = {user}",
    "UPDATE users SET id = {other} WHERE id = {user} AND NOT EXISTS (SELECT FROM users WHERE id = {other})",
    "DELETE FROM users WHERE id = {user}",
    "INSERT INTO audit (said) VALUES ('{user} → {other}')",
    "INSERT INTO unwanted (note) VALUES ('no shape')",
)
_LARGE: Final = (
    "INSERT INTO orders (bucket, note) SELECT i % 5, repeat('x', i) FROM generate_series(1, 400) i",
    "UPDATE orders SET bucket = (bucket + 1) % 5 WHERE id % 3 = {bucket} % 3",
    "DELETE FROM orders WHERE id % 2 = {bucket} % 2",
    "INSERT INTO users SELECT i, 'large' FROM generate_series(1, 200) i ON CONFLICT (id) DO NOTHING",
)
_TRUNCATES: Final = ("TRUNCATE orders", "TRUNCATE users", "TRUNCATE orders, users, unwanted", "TRUNCATE audit")
_SESSIONS: Final = 2
_LONGEST_PAUSE_S: Final = 0.2


class LoopWorkload:
    """A context manager that runs transactions, mostly small ones, from sessions of their own.

    ``server`` returns the server to connect to. A transaction that fails, as by a deadlock or because the server is
    killed, is given up: what the server made of it, only the server knows. ``failure`` is the error that ended a
    session, if any.
    """

    def __init__(
        self, server: Callable[[], LocalPostgres], seed: int, longest_pause_s: float = _LONGEST_PAUSE_S
    ) -> None:
        self.failure: BaseException | None = None
        self._server = server
        self._longest_pause_s = longest_pause_s
        self._stop = Event()
        self._sessions = [Thread(target=self._run, args=(seed + number,)) for number in range(_SESSIONS)]

    def __enter__(self) -> "LoopWorkload":
        for session in self._sessions:
            session.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the running transactions."""
        self._stop.set()
        for session in self._sessions:
            session.join()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  a reproducible test workload
        try:
            while not self._stop.wait(rng.uniform(0, self._longest_pause_s)):
                with suppress(psycopg2.Error, PostgresError):
                    run_in_transaction(self._server(), transaction(rng))
        except BaseException as error:  # noqa: BLE001  kept for the soak to report
            self.failure = error


def transaction(rng: random.Random) -> list[str]:
    """The statements of a random transaction; some are rolled back."""
    texts = rng.choices(_STATEMENTS, k=rng.randrange(1, 5))
    if rng.random() < 0.04:
        texts.append(rng.choice(_LARGE))
    if rng.random() < 0.02:
        texts.insert(rng.randrange(len(texts) + 1), rng.choice(_TRUNCATES))
    if rng.random() < 0.05:
        texts.append("ROLLBACK")
    return [
        text.format(
            bucket=rng.choice(["0", "1", "2", "3", "NULL"]),
            few=rng.randrange(20),
            user=rng.randrange(1, 200),
            other=rng.randrange(1, 200),
        )
        for text in texts
    ]
