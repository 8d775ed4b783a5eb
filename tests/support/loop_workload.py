"""What the whole loop is about: tables, the shapes on them, and random transactions from several sessions."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import psycopg

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from tests.support.background import Background
from tests.support.capture_rig import run_in_transaction, shape
from tests.support.truth import Row

_TABLES: Final = (
    "CREATE TABLE orders (id serial PRIMARY KEY, bucket int, note text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE users (id int PRIMARY KEY, note text)",
    "CREATE TABLE audit (id bigserial PRIMARY KEY, said text)",
    "CREATE TABLE unwanted (id serial PRIMARY KEY, note text)",
)
KEY: Final = "id"
"""The key of every table."""
# Each keepalive is a batch of the tracker, and each look at the ack table takes from the jobs what they need.
INTERVALS: Final = {"status": "200 ms", "acks": "200 ms", "keepalive": "2 seconds", "shapes": "500 ms"}


Matches: TypeAlias = Callable[[Row], bool]


@dataclass(frozen=True)
class LoopShape:
    """A shape on a table of the schema ``public``; ``matches`` says in Python what its ``where`` says in SQL.

    ``inner``: the same of each table that subqueries of it read. Its log has these rows, too. Without ``snapshot`` it
    lacks what the table has before it begins.
    """

    id: str
    table: str
    matches: Matches = lambda _: True
    fields: dict[str, Any] = field(default_factory=dict)
    inner: Mapping[str, Matches] = field(default_factory=dict)
    snapshot: bool = False

    @property
    def definition(self) -> dict[str, Any]:
        return shape(self.id, f"public.{self.table}", snapshot=self.snapshot, **self.fields)

    @property
    def logged(self) -> Mapping[str, Matches]:
        """The rows that its log has, by table."""
        return {self.table: self.matches, **self.inner}


JOINED: Final = LoopShape(
    "orders-joined",
    "orders",
    fields={"where": "note IN (SELECT note FROM public.users WHERE id > 7)"},
    inner={"users": lambda row: int(row["id"] or 0) > 7},
    snapshot=True,
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


def _mixed(rng: random.Random) -> list[str]:
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


def _tpcb(rng: random.Random) -> list[str]:
    aid, tid, bid, amount = rng.randrange(1, 101), rng.randrange(1, 11), rng.randrange(1, 4), rng.randrange(-5000, 5000)
    return [
        f"UPDATE accounts SET abalance = abalance + {amount} WHERE aid = {aid}",  # noqa: S608  numbers
        f"UPDATE tellers SET tbalance = tbalance + {amount} WHERE tid = {tid}",  # noqa: S608
        f"UPDATE branches SET bbalance = bbalance + {amount} WHERE bid = {bid}",  # noqa: S608
        f"INSERT INTO history (delta) VALUES ({amount})",  # noqa: S608
    ]


@dataclass(frozen=True)
class Content:
    """Tables, all shapes on them, and what a session does to them.

    A transaction may be given up for an error ``given_up``, as by a deadlock, or because the server is killed: what the
    server made of it, only the server knows. ``capture`` has settings of capture. ``is_judged``:
    whether the server keeps the transactions for :mod:`tests.support.server_truth`.
    """

    tables: Sequence[str]
    shapes: Sequence[LoopShape]
    transaction: Callable[[random.Random], list[str]] = lambda _: []
    given_up: tuple[type[BaseException], ...] = ()
    capture: Mapping[str, Any] = field(default_factory=dict)
    retain: Mapping[str, str] = field(default_factory=dict)
    """How little of the history of some shapes is kept."""
    is_judged: bool = False


MIXED: Final = Content(
    _TABLES,
    SHAPES,
    _mixed,
    (psycopg.Error, PostgresError),
    {"max_batch_size": 20},
    dict.fromkeys(("orders", "orders-1", "users", JOINED.id), "2 seconds"),
    is_judged=True,
)
"""Every shape has all rows of its table, because nothing is written before capture has registered it.

One with a subquery needs a snapshot all the same.
"""
USERS: Final = Content(
    (
        "CREATE TABLE public.users (id int PRIMARY KEY, n int NOT NULL)",
        "INSERT INTO public.users SELECT n, n FROM generate_series(1, 50) AS n",
    ),
    [LoopShape("whole users", "users", snapshot=True)],
)
"""A table that has rows, and a shape that may begin again."""
TPCB: Final = Content(
    (
        "CREATE TABLE accounts (aid int PRIMARY KEY, abalance int NOT NULL)",
        "CREATE TABLE tellers (tid int PRIMARY KEY, tbalance int NOT NULL)",
        "CREATE TABLE branches (bid int PRIMARY KEY, bbalance int NOT NULL)",
        "CREATE TABLE history (hid bigserial PRIMARY KEY, delta int NOT NULL)",
        "INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) AS n",
        "INSERT INTO tellers SELECT n, 0 FROM generate_series(1, 10) AS n",
        "INSERT INTO branches SELECT n, 0 FROM generate_series(1, 3) AS n",
    ),
    [LoopShape(name, name, snapshot=True) for name in ("accounts", "tellers", "branches", "history")]
    + [LoopShape("spare branches", "branches", snapshot=True)],
    _tpcb,
    capture={"intervals": {**INTERVALS, "keepalive": "1 second"}},
)
"""Each transaction changes a row of each of four tables by the same amount, so these always have the same sum.

The last shape may be removed.
"""


class LoopWorkload(Background):
    """A context manager that runs transactions, mostly small ones, from sessions of their own.

    ``server`` returns the server to connect to.
    """

    def __init__(
        self,
        server: Callable[[], LocalPostgres],
        seed: int,
        content: Content = MIXED,
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        super().__init__(*(partial(self._play, seed + number) for number in range(_SESSIONS)))
        self._server, self._content, self._longest_pause_s = server, content, longest_pause_s

    def _play(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  a reproducible test workload
        while not self.stopping.wait(rng.uniform(0, self._longest_pause_s)):
            with suppress(*self._content.given_up):
                run_in_transaction(self._server(), self._content.transaction(rng))
