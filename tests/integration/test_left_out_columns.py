"""Generated columns on a server of each kind: sent by a publication that capture creates, or named as left out."""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.shapes.catalog_check import catalog_problems
from flushtracker.postgres.catalog import Catalog
from flushtracker.postgres.left_out import LeftOutLog, left_out_columns
from flushtracker.postgres.publication import Publication
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.new_server import running_server
from tests.support.server_versions import binaries_of, runs_here

pytestmark = pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")

_TABLE: Final = ("public", "t")
_LACK: Final = "shapes on public.t lack its generated columns "
_COMPUTE: Final = ": PostgreSQL does not send them; compute them from the other columns where shapes are read"


@pytest.fixture(scope="module", params=[14, 17, 18])
def versioned(request: pytest.FixtureRequest) -> Iterator[tuple[int, LocalPostgres]]:
    version: int = request.param
    with running_server(binaries_of(version)) as server:
        yield version, server


def test_no_generated_column_is_left_out_without_a_word(versioned: tuple[int, LocalPostgres]) -> None:
    """What the publication sends and what is named as left out are all columns; the remedy that is named ends it."""
    version, server = versioned
    server.execute("CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED)")
    if version >= 18:
        server.execute("ALTER TABLE t ADD v int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    virtual = [f"{_LACK}v{_COMPUTE}"] if version >= 18 else []
    with closing(server.connect()) as connection:

        def sent(publication: str) -> list[str]:
            facts = Catalog(connection, publication).table(_TABLE)
            assert facts is not None
            return [column.name for column in facts.relation.columns]

        def left_out(publication: str | None) -> list[str]:
            return list(left_out_columns(connection, publication, [_TABLE]))

        expected = virtual or [f"{_LACK}s{_COMPUTE}"]
        # What capture will create is judged as if it were there.
        assert left_out(None) == left_out("own") == expected
        assert Publication(connection, "own", "slot").create([])
        assert left_out("own") == expected
        assert sent("own") == (["id", "s"] if version >= 18 else ["id"])
        server.execute("CREATE PUBLICATION theirs FOR TABLE t")
        assert sent("theirs") == ["id"]
        if version < 18:
            assert left_out("theirs") == expected
            return
        stored, *rest = left_out("theirs")
        remedy = 'ALTER PUBLICATION "theirs" SET (publish_generated_columns = stored)'
        assert stored.startswith(f"{_LACK}s: publication theirs does not send them; before shapes are added, {remedy};")
        assert rest == virtual
        server.execute(remedy)
        assert left_out("theirs") == virtual
        assert sent("theirs") == ["id", "s"]


def test_check_and_the_log_name_every_column_that_is_left_out(
    versioned: tuple[int, LocalPostgres], caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are: who reads the shape looks for each of them."""
    version, server = versioned
    names = [f"g{number}" for number in range(12)]
    generated = ", ".join(f"{name} int GENERATED ALWAYS AS (id + 1) STORED" for name in names)
    server.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {generated})", "CREATE PUBLICATION all_rows FOR TABLE wide")
    expected = f"shapes on public.wide lack its generated columns {', '.join(names)}: "
    expected += "publication all_rows does not send them; " if version >= 18 else "PostgreSQL does not send them; "
    _, (note,) = catalog_problems(server.options, "all_rows", [ShapeDefinition("wide", ("public", "wide"))])
    assert note.startswith(f"note: {expected}")
    with closing(server.connect()) as connection:
        LeftOutLog(connection, "all_rows").note([("public", "wide")])
    (logged,) = caplog.messages
    assert logged.startswith(f"columns left out: {expected}")
