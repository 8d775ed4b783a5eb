"""Tables are read from the catalog by several queries, and altered between any two of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.shapes.definition import ShapeDefinition

_CREATE: Final = (
    "CREATE TYPE {t}_mood AS ENUM ('sad', 'happy')",
    "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_mood, w int NOT NULL UNIQUE)",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
)
_ALTER: Final = (
    "BEGIN; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (w); ALTER TABLE {t} ADD n int "
    "DEFAULT 7; ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'; COMMIT"
)


class AlteredTable:
    """A table that another connection alters, once, before the catalog query number ``at``."""

    def __init__(self, server: LocalPostgres, at: int) -> None:
        self.name = f"t{at}"
        self._server = server
        server.execute(*(statement.format(t=self.name) for statement in _CREATE))
        ((self.oid,),) = server.execute(f"SELECT '{self.name}'::regclass::oid::bigint")
        self._left = at
        self.is_altered = False

    def read(self, read: Callable[[ServerTables], Any]) -> Any:
        """What ``read`` returns, over a connection of its own; the table is altered meanwhile."""
        table = self

        class HookedCursor(psycopg.ClientCursor[Any]):
            def execute(self, *arguments: Any, **keywords: Any) -> Any:
                table.handle_query()
                return super().execute(*arguments, **keywords)

        connection = self._server.connect()
        tables = ServerTables(connection, "all_tables")
        connection.cursor_factory = HookedCursor
        try:
            return read(tables)
        finally:
            connection.close()

    def handle_query(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._server.execute(_ALTER.format(t=self.name))
            self.is_altered = True


def read_plainly(server: LocalPostgres, read: Callable[[ServerTables], Any]) -> Any:
    connection: Connection = server.connect()
    try:
        return read(ServerTables(connection, "all_tables"))
    finally:
        connection.close()


@pytest.fixture
def server(postgres: LocalPostgres) -> LocalPostgres:
    postgres.execute("CREATE PUBLICATION all_tables FOR ALL TABLES")
    return postgres


def test_a_binding_is_of_one_moment(server: LocalPostgres) -> None:
    """With the key of before and the columns of after, it would be taken for what shapes were bound to."""
    for at in range(1, 100):
        table = AlteredTable(server, at)
        read = partial(ServerTables.bindings, oids=[table.oid])
        before = read_plainly(server, read)
        found = table.read(read)
        if not table.is_altered:
            break
        after = read_plainly(server, read)
        assert before != after
        assert found in (before, after), f"altered before query {at}"
    assert at > 5, "each gap between two queries was tried"


def test_a_shape_is_completed_from_the_moment_of_its_binding(server: LocalPostgres) -> None:
    """A key that changed before the table was described would never be found to have changed."""
    for at in range(1, 100):
        table = AlteredTable(server, at)
        definition = ShapeDefinition("s", ("public", table.name))
        ((completed, binding),) = table.read(partial(ServerTables.resolve, definitions=[definition]))
        assert completed.primary_key == binding.key, f"altered before query {at}"
        if not table.is_altered:
            break
    assert at > 10, "each gap between two queries was tried"
