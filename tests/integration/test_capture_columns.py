"""Columns on a real server: names that are exchanged for a time, collations, references, and generated columns."""

from typing import Final

import pytest

from flushtracker.local.postgres import system_binaries
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.schema_story import PLAIN, Story, play
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here
from tests.support.shape_outcome import Outcome

_SWAP: Final = (
    "ALTER TABLE {t} RENAME v TO other",
    "ALTER TABLE {t} RENAME u TO v",
    "ALTER TABLE {t} RENAME other TO u",
)
_SWAPPED: Final = (*_SWAP, "UPDATE {t} SET v = 'x' WHERE id = 1", *_SWAP)
_EXCHANGED: Final = "may have had another name|was renamed to"
_TWO: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v text, u text, w int)"
_FIRST: Final = "INSERT INTO {t} (id, v, u) VALUES (1, 'a', 'c'), (2, 'b', 'd')"
_PARTS: Final = (
    "CREATE TABLE {t} (id int PRIMARY KEY, v text, u text) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (2)",
    # Its columns are in another order.
    "CREATE TABLE {t}_b (u text, v text, id int PRIMARY KEY)",
    "ALTER TABLE {t} ATTACH PARTITION {t}_b FOR VALUES FROM (2) TO (100)",
)
_INSENSITIVE: Final = (
    "CREATE COLLATION {t}_ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "CREATE TABLE {t} (id int PRIMARY KEY, v text COLLATE {t}_ci, w int)",
)
_TURKISH: Final = "CREATE COLLATION {t}_tr (provider = icu, locale = 'tr')"
STORIES: Final = (
    Story("names exchanged, rows changed, and exchanged back", _SWAPPED, _EXCHANGED, (_TWO,), _FIRST),
    Story("names of listed columns exchanged", _SWAPPED, _EXCHANGED, (_TWO,), _FIRST, columns=("id", "v")),
    Story("names of columns that are not listed exchanged", _SWAPPED, None, (_TWO,), _FIRST, columns=("id", "w")),
    Story("names exchanged in a partitioned table", _SWAPPED, _EXCHANGED, _PARTS, _FIRST),
    Story(
        "names exchanged, and rows of a partition with another order of columns changed",
        (*_SWAP, "UPDATE {t} SET v = 'x' WHERE id = 2", *_SWAP),
        _EXCHANGED,
        _PARTS,
        _FIRST,
    ),
    Story(
        "names exchanged and back without a change in between",
        (";".join((*_SWAP, *_SWAP)), "UPDATE {t} SET v = 'x'"),
        None,
        (_TWO,),
        _FIRST,
    ),
    Story(
        "columns altered in a partitioned table whose partitions have other orders",
        (
            "ALTER TABLE {t} ALTER v SET DEFAULT 'z', ALTER u SET STATISTICS 10",
            "INSERT INTO {t} (id) VALUES (3)",
            "UPDATE {t} SET u = 'x'",
        ),
        None,
        _PARTS,
        _FIRST,
    ),
    Story(
        "columns altered and added",
        (
            "ALTER TABLE {t} ALTER v SET DEFAULT 'z'",
            "INSERT INTO {t} (id) VALUES (3)",
            "ALTER TABLE {t} ADD n text",
            "INSERT INTO {t} (id) VALUES (4)",
        ),
        None,
    ),
    Story(
        "column that gets a type of references",
        (
            "ALTER TYPE {t}_pair ADD ATTRIBUTE place regclass",
            "INSERT INTO {t} VALUES (3, ROW(3, 'pg_class'))",
        ),
        "was altered",
        ("CREATE TYPE {t}_pair AS (a int)", "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_pair)"),
        "INSERT INTO {t} VALUES (1, ROW(1))",
    ),
    Story(
        "column of references added to a table with a shape of all columns",
        ("ALTER TABLE {t} ADD place regclass",),
        "column place of table public.t[0-9]+ has values of type regclass",
    ),
    Story(
        "column of references that is not listed",
        ("ALTER TABLE {t} ADD place regclass", "UPDATE {t} SET place = 'pg_class'"),
        None,
        columns=("id", "v"),
    ),
)
COLLATIONS: Final = (
    Story(
        "key that differs in case only",
        ("UPDATE {t} SET id = upper(id), v = 'x'", "INSERT INTO {t} VALUES ('C', 'c')", "DELETE FROM {t} WHERE id='b'"),
        None,
        (
            _INSENSITIVE[0],
            "CREATE TABLE {t} (id text COLLATE {t}_ci PRIMARY KEY, v text)",
        ),
        "INSERT INTO {t} VALUES ('a', 'a'), ('b', 'b')",
    ),
    Story(
        "where on a column that gets a nondeterministic collation",
        (_INSENSITIVE[0], "ALTER TABLE {t} ALTER v TYPE text COLLATE {t}_ci"),
        "where reads column v of table public.t[0-9]+, which has a nondeterministic collation",
        (PLAIN, "ALTER TABLE {t} REPLICA IDENTITY FULL"),
        where="v = 'a'",
    ),
    Story(
        "where that maps the case of a column that gets a Turkish collation",
        (_TURKISH, "ALTER TABLE {t} ALTER v TYPE text COLLATE {t}_tr", "INSERT INTO {t} (id, v) VALUES (3, 'AI')"),
        r"where uses lower or ILIKE of column v of table public.t[0-9]+, and in its collation lower\('I'\) is 'ı'",
        (PLAIN, "ALTER TABLE {t} REPLICA IDENTITY FULL"),
        where="v ILIKE 'a%'",
    ),
    Story(
        "where that maps the case of a column that gets another collation that maps it alike",
        (
            _TURKISH,
            'ALTER TABLE {t} ALTER v TYPE text COLLATE "C", ALTER w TYPE text COLLATE {t}_tr',
            "INSERT INTO {t} (id, v) VALUES (3, 'AI')",
        ),
        None,
        ("CREATE TABLE {t} (id int PRIMARY KEY, v text, w text)", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
        "INSERT INTO {t} VALUES (1, 'a', 'a'), (2, 'A', 'b')",
        where="lower(v) LIKE 'a%'",
    ),
)


@pytest.fixture(scope="module", params=in_turn(["while running", "while down"]))
def outcomes(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    return play(STORIES, broker, tmp_path_factory.mktemp("columns"), down=request.param == "while down")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_shape_equals_its_query_or_has_ended(outcomes: dict[str, Outcome], story: Story) -> None:
    """A column is identified by its number, which the stream does not have."""
    story.check(outcomes[story.name])


@pytest.fixture(scope="module", params=in_turn(["while running", "while down"]))
def collated(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """On a server with ICU: the packaged one is built without."""
    binaries = binaries_of(18) if runs_here() else system_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL with ICU is installed")
    folder = tmp_path_factory.mktemp("collations")
    return play(COLLATIONS, broker, folder, down=request.param == "while down", binaries=binaries)


@pytest.mark.parametrize("story", COLLATIONS, ids=lambda story: story.name)
def test_shape_equals_its_query_under_a_nondeterministic_collation(collated: dict[str, Outcome], story: Story) -> None:
    """As a key such a column is right, because a change of case is a change of the row's key; in a where it is not."""
    story.check(collated[story.name])


_GENERATED: Final = "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v text)"


def test_stored_generated_columns_that_are_published_are_part_of_a_shape(rig: CaptureRig) -> None:
    """They are columns like others then; those that are computed when they are read are never sent."""
    rig.server.execute(_GENERATED, "ALTER TABLE t ADD w int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    rig.server.execute("ALTER PUBLICATION shapes SET (publish_generated_columns = stored)")
    rig.server.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    rig.define(shape("t", "public.t"), shape("listed", "public.t", columns=["id", "g"], where="g > 4"))
    capture = rig.start()
    rig.wait(lambda: len(rig.registry()) == 2, "the shapes")
    rig.execute_and_wait(
        "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)", "ALTER TABLE t ALTER g DROP EXPRESSION"
    )
    rig.execute_and_wait("INSERT INTO t VALUES (4, 9)")
    assert [item.value for item in rig.items("t")] == [
        {"id": str(n), "g": str(g), "v": None} for n, g in ((2, 4), (3, 6), (4, 9))
    ]
    assert [item.value for item in rig.items("listed")] == [{"id": "3", "g": "6"}, {"id": "4", "g": "9"}]
    assert all(entry.removed_at is None for entry in rig.registry().values())
    capture.stop()


@pytest.mark.parametrize("setting", [("none", "stored"), ("stored", "none")], ids=" to ".join)
@pytest.mark.parametrize("down", in_turn([False, True]))
def test_shapes_end_when_generated_columns_are_published_from_then_on(
    rig: CaptureRig,
    setting: tuple[str, str],
    down: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """The publication was altered, whatever is read first: the catalog, the publication or a row."""
    statements = [f"ALTER PUBLICATION shapes SET (publish_generated_columns = {value})" for value in setting]
    rig.server.execute(_GENERATED, statements[0])
    rig.define(shape("t", "public.t"))
    capture = rig.start()
    rig.wait(lambda: "t" in rig.registry(), "the shape")
    rig.execute_and_wait("INSERT INTO t VALUES (2)")
    if down:
        capture.stop()
    rig.server.execute(statements[1], "INSERT INTO t VALUES (3)")
    if down:
        rig.start()
    rig.wait(lambda: rig.registry()["t"].removed_at is not None, "the end of the shape")
    assert len(rig.items("t")) == 1, "not the one from after it"
    reason = rig.registry()["t"].ended_because or ""
    assert "the publication was altered" in reason or "column g of table public.t" in reason
