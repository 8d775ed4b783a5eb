"""Clients that change tables at random, in all the ways that a snapshot could be wrong about."""

import random
import time
from contextlib import closing
from functools import partial
from typing import Any, Final

import psycopg

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection
from tests.support.background import Background

TABLES: Final = (
    "CREATE TABLE rows (id int PRIMARY KEY, grp int NOT NULL, note text)",
    "ALTER TABLE rows REPLICA IDENTITY FULL",
    "CREATE TABLE parts (id int PRIMARY KEY, grp int NOT NULL, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (60)",
    # Its columns are in another order.
    "CREATE TABLE parts_high (note text, grp int NOT NULL, id int PRIMARY KEY)",
    "ALTER TABLE parts ATTACH PARTITION parts_high FOR VALUES FROM (60) TO (MAXVALUE)",
    "ALTER TABLE parts_low REPLICA IDENTITY FULL",
    "ALTER TABLE parts_high REPLICA IDENTITY FULL",
    "CREATE TABLE indexed (id int NOT NULL, grp int NOT NULL, note text)",
    "CREATE UNIQUE INDEX indexed_id ON indexed (id)",
    "ALTER TABLE indexed REPLICA IDENTITY FULL",
    "CREATE SEQUENCE ids",
)
NAMES: Final = ("rows", "parts", "indexed")
_IDS: Final = 120
_CLIENTS: Final = 5
_TRUNCATE_SHARE: Final = 0.01
_ROLLBACK_SHARE: Final = 0.1
_SAVEPOINT_SHARE: Final = 0.2
_HOLD_SHARE: Final = 0.05
_NOTES: Final = (None, "", "a\tb", "é\\n", "x" * 40)
_INSERT: Final = (
    "INSERT INTO {table} (id, grp, note) SELECT {new}, %(grp)s, %(note)s "
    "WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {place} = {id})"
)
_CHANGES: Final = (
    _INSERT,
    _INSERT,
    _INSERT,
    "UPDATE {table} SET grp = %(grp)s WHERE {place} = {id}",
    "UPDATE {table} SET note = %(note)s WHERE {place} BETWEEN {id} AND {id} + 3",
    # Another key, in the partitioned table perhaps in the other partition.
    "UPDATE {table} SET id = {new} WHERE {place} = {id}",
    "DELETE FROM {table} WHERE {place} = {id}",
)
# The last: a row was locked that another client had moved to the other partition.
_EXPECTED: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


class Workload(Background):
    """Runs the clients; each has a seed of its own."""

    def __init__(self, server: LocalPostgres, seed: int) -> None:
        super().__init__(*(partial(self._play, f"{seed}/{client}") for client in range(_CLIENTS)))
        self._server = server
        self.committed = 0

    def _play(self, seed: str) -> None:
        rng = random.Random(seed)  # noqa: S311  repeatable
        with closing(self._server.connect()) as connection:
            connection.autocommit = False
            with connection.transaction(), connection.cursor() as cursor:
                # Such commits become visible before the server flushes them.
                cursor.execute(f"SET synchronous_commit = {rng.choice(['on', 'on', 'off'])}")
            while not self.stopping.is_set():
                self._transact(connection, rng)

    def _transact(self, connection: Connection, rng: random.Random) -> None:
        try:
            with connection.cursor() as cursor:
                for _ in range(rng.randrange(1, 6)):
                    self._statement(cursor, rng)
                if rng.random() < _HOLD_SHARE:
                    self.stopping.wait(rng.random())
            if rng.random() < _ROLLBACK_SHARE:
                connection.rollback()
            else:
                connection.commit()
                self.committed += 1
        except _EXPECTED:
            connection.rollback()
        time.sleep(rng.random() * 0.02)

    def _statement(self, cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
        """One statement, or one in a subtransaction, which may be rolled back."""
        table = rng.choice(NAMES)
        if rng.random() < _TRUNCATE_SHARE:
            cursor.execute(f"TRUNCATE {table}")
            return
        # This table has a plain unique index, and never the same id again.
        new, place = ("nextval('ids')", f"id %% {_IDS}") if table == "indexed" else (f"{rng.randrange(_IDS)}", "id")
        text = rng.choice(_CHANGES).format(table=table, new=new, place=place, id=rng.randrange(_IDS))
        row = {"grp": rng.randrange(5), "note": rng.choice(_NOTES)}
        is_nested = rng.random() < _SAVEPOINT_SHARE
        if is_nested:
            cursor.execute("SAVEPOINT here")
        cursor.execute(text, row)
        if is_nested:
            cursor.execute("ROLLBACK TO here" if rng.random() < _ROLLBACK_SHARE else "RELEASE here")
