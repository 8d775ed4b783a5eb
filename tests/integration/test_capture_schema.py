"""Schema changes on a real server: at every quiet moment a shape either equals its query, or it has ended by itself.

Each story has a table and a shape of its own. All of them are played in one database, once while capture runs and once
while it is down, and then judged by the same rule: fold the shape's items and compare them with the table.
"""

from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, run_in_transaction, shape
from tests.support.schema_story import PLAIN, Story, play
from tests.support.seeds import in_turn
from tests.support.shape_outcome import Outcome

_ROOT: Final = "CREATE TABLE {t} (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)"
_PARTS: Final = (
    "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES FROM (10) TO (20)",
)
_NESTED: Final = (
    "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_a1 PARTITION OF {t}_a FOR VALUES FROM (0) TO (5)",
    "CREATE TABLE {t}_a2 PARTITION OF {t}_a FOR VALUES FROM (5) TO (10)",
    "CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES FROM (10) TO (20)",
)


_PARTITIONED: Final = (_ROOT, *_PARTS)
_NEW_PARTITION: Final = "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)"
_SELECTIVE: Final = (_ROOT, *_PARTS, *(f"ALTER TABLE {{t}}_{part} REPLICA IDENTITY FULL" for part in "ab"))
_MOODY: Final = ("CREATE TYPE {t}_mood AS ENUM ('sad', 'happy')", "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_mood)")
_EXCHANGE: Final = (
    "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'other'",
    "ALTER TYPE {t}_mood RENAME VALUE 'happy' TO 'sad'",
    "ALTER TYPE {t}_mood RENAME VALUE 'other' TO 'happy'",
)
_MOODS: Final = "INSERT INTO {t} VALUES (1, 'sad'), (2, 'happy')"
_INSERT: Final = "INSERT INTO {t} (id, v) VALUES (3, 'c')"
STORIES: Final = (
    Story(
        "replica identity nothing has the primary key all the same",
        ("ALTER TABLE {t} RENAME w TO x", _INSERT),
        None,
        create=(PLAIN, "ALTER TABLE {t} REPLICA IDENTITY NOTHING"),
        columns=("id", "v"),
    ),
    Story(
        "new partition whose identity lacks what where reads, until it is set before the first update",
        (
            "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t} VALUES (21, 'a'), (22, 'z'), (23, 'a')",
            "ALTER TABLE {t}_c REPLICA IDENTITY FULL",
            "UPDATE {t} SET v = 'z' WHERE id = 21",
            "UPDATE {t} SET v = 'a' WHERE id = 22",
            "DELETE FROM {t} WHERE id = 23",
        ),
        None,
        create=_SELECTIVE,
        where="v = 'a'",
    ),
    Story(
        "new partition whose identity lacks what where reads, and a row moves into it",
        (
            "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "UPDATE {t} SET id = 21 WHERE id = 1",
            "UPDATE {t} SET id = 22, v = 'a' WHERE id = 2",
        ),
        None,
        create=_SELECTIVE,
        where="v = 'a'",
    ),
    *(
        Story(
            f"new partition whose identity lacks what where reads, then {statement}",
            (
                "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
                "INSERT INTO {t} VALUES (21, 'a'), (22, 'z')",
                statement,
            ),
            "where reads v, but old rows contain only id",
            create=_SELECTIVE,
            where="v = 'a'",
        )
        for statement in (
            "UPDATE {t} SET v = 'z' WHERE id = 21",
            "DELETE FROM {t} WHERE id = 22",
            "UPDATE {t} SET id = 1 + (SELECT max(id) FROM {t}) WHERE id = 22",
        )
    ),
    Story(
        "primary key changed",
        (
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
            "ALTER TABLE {t} ALTER w SET NOT NULL",
            "ALTER TABLE {t} ADD PRIMARY KEY (id, w)",
        ),
        "the key of table",
        first="INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2)",
    ),
    Story("column renamed", ("ALTER TABLE {t} RENAME v TO u",), "was renamed to u"),
    Story("column dropped", ("ALTER TABLE {t} DROP v",), "column v of table"),
    Story("column added with a default", ("ALTER TABLE {t} ADD n int DEFAULT 7",), "column n was added"),
    Story(
        "unlisted column added with a default",
        ("ALTER TABLE {t} ADD n int DEFAULT 7", _INSERT),
        None,
        columns=("id", "v"),
    ),
    Story("rows rewritten in the same type", ("ALTER TABLE {t} ALTER v TYPE text USING upper(v)",), "were rewritten"),
    Story("type changed", ("ALTER TABLE {t} ALTER v TYPE varchar(9)",), "the type of column v"),
    Story("label renamed", ("ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'",), "'sad' of type", _MOODY, _MOODS),
    Story(
        "label renamed and renamed back",
        (
            "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'",
            "INSERT INTO {t} VALUES (3, 'blue')",
            "ALTER TYPE {t}_mood RENAME VALUE 'blue' TO 'sad'",
        ),
        "label",
        _MOODY,
        _MOODS,
    ),
    Story(
        "labels exchanged and exchanged back",
        (*_EXCHANGE, "INSERT INTO {t} VALUES (3, 'sad')", *_EXCHANGE),
        "label",
        _MOODY,
        _MOODS,
    ),
    Story(
        "label added, used and renamed",
        (
            "ALTER TYPE {t}_mood ADD VALUE 'ok'",
            "INSERT INTO {t} VALUES (3, 'ok')",
            "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'",
        ),
        "label",
        _MOODY,
        _MOODS,
    ),
    Story(
        "label of an array renamed",
        ("ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'",),
        "'sad' of type",
        (_MOODY[0], "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_mood[])"),
        "INSERT INTO {t} VALUES (1, '{{sad}}')",
    ),
    Story(
        "label of a column that is not listed renamed",
        ("ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'blue'", "INSERT INTO {t} VALUES (3, 'blue')"),
        None,
        _MOODY,
        _MOODS,
        columns=("id",),
    ),
    Story(
        "label added in the middle",
        ("ALTER TYPE {t}_mood ADD VALUE 'ok' BEFORE 'happy'", "INSERT INTO {t} VALUES (3, 'ok'), (4, 'sad')"),
        None,
        (*_MOODY, "ALTER TABLE {t} REPLICA IDENTITY FULL"),
        _MOODS,
        where="v > 'sad'",
    ),
    Story(
        "enum replaced",
        (
            "ALTER TABLE {t} ALTER v TYPE text",
            "DROP TYPE {t}_mood",
            "CREATE TYPE {t}_mood AS ENUM ('happy', 'sad')",
            "ALTER TABLE {t} ALTER v TYPE {t}_mood USING v::{t}_mood",
        ),
        "the type of column v",
        _MOODY,
        _MOODS,
    ),
    Story("enum dropped", ("DROP TYPE {t}_mood CASCADE",), "column v of table", _MOODY, _MOODS),
    Story(
        "attribute added to a composite type",
        ("ALTER TYPE {t}_pair ADD ATTRIBUTE c int", _INSERT.replace("'c'", "ROW(1, 2, 3)")),
        "was altered",
        ("CREATE TYPE {t}_pair AS (a int, b int)", "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_pair)"),
        "INSERT INTO {t} VALUES (1, ROW(1, 2))",
    ),
    Story(
        "label added to an enum within a composite type",
        ("ALTER TYPE {t}_mood ADD VALUE 'ok'",),
        "labels were added",
        (
            _MOODY[0],
            "CREATE TYPE {t}_pair AS (a int, b {t}_mood)",
            "CREATE TABLE {t} (id int PRIMARY KEY, v {t}_pair)",
        ),
        "INSERT INTO {t} VALUES (1, ROW(1, 'sad'))",
    ),
    Story("dropped", ("DROP TABLE {t}",), "was dropped"),
    Story("renamed", ("ALTER TABLE {t} RENAME TO {t}_new",), "was renamed"),
    Story("moved to another schema", ("ALTER TABLE {t} SET SCHEMA elsewhere",), "was renamed to elsewhere."),
    Story("unlogged", ("ALTER TABLE {t} SET UNLOGGED", _INSERT), "is unlogged"),
    Story(
        "inherited",
        ("CREATE TABLE {t}_child () INHERITS ({t})", "INSERT INTO {t}_child (id, v) VALUES (9, 'x')"),
        "inheritance",
    ),
    Story(
        "root renamed",
        (
            "ALTER TABLE {t} RENAME TO {t}_new",
            "CREATE TABLE {t}_c PARTITION OF {t}_new FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t}_new VALUES (21, 'c')",
        ),
        "was renamed",
        create=_PARTITIONED,
    ),
    Story(
        "another root under the old name",
        (
            "ALTER TABLE {t} RENAME TO {t}_new",
            _ROOT.replace("{t} (", "{t} ("),
            "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t} VALUES (21, 'c')",
        ),
        "was renamed",
        create=_PARTITIONED,
    ),
    Story(
        "generated column made an ordinary one",
        ("ALTER TABLE {t} ALTER g DROP EXPRESSION",),
        "column g of table",
        create=("CREATE TABLE {t} (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) STORED)",),
    ),
    Story(
        "partition detached and attached again",
        (
            "ALTER TABLE {t} DETACH PARTITION {t}_a",
            "INSERT INTO {t}_a VALUES (5, 'x')",
            "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (0) TO (10)",
        ),
        # The second, if capture has looked at the catalog in between.
        "detached and attached again|attached to table .* and may have had rows",
        create=_PARTITIONED,
    ),
    Story(
        "partition renamed",
        ("ALTER TABLE {t}_a RENAME TO {t}_z", "INSERT INTO {t} VALUES (5, 'x')"),
        "renamed",
        create=_PARTITIONED,
    ),
    Story(
        "partition attached with rows",
        (
            "CREATE TABLE {t}_c (id int PRIMARY KEY, v text)",
            "INSERT INTO {t}_c VALUES (21, 'c')",
            "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (20) TO (30)",
        ),
        "was attached",
        create=_PARTITIONED,
    ),
    Story(
        "table attached as a partition after its rows were removed",
        (
            "CREATE TABLE {t}_c (id int PRIMARY KEY, v text)",
            "INSERT INTO {t}_c VALUES (21, 'c')",
            "UPDATE {t}_c SET v = 'd'",
            "TRUNCATE {t}_c",
            "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (20) TO (30)",
        ),
        "before or after it was attached",
        create=_PARTITIONED,
    ),
    Story(
        "new partition truncated before it is recorded",
        (_NEW_PARTITION, "INSERT INTO {t} VALUES (21, 'c')", "TRUNCATE {t}_c", "INSERT INTO {t} VALUES (22, 'd')"),
        None,
        create=_PARTITIONED,
    ),
    Story(
        "new partition without a TOAST table truncated before it is recorded",
        (_NEW_PARTITION, "INSERT INTO {t} VALUES (21, 'c')", "TRUNCATE {t}_c", "INSERT INTO {t} VALUES (22, 'd')"),
        None,
        create=tuple(text.replace("v text", "v varchar(20)") for text in _PARTITIONED),
    ),
    Story(
        "root truncated before it got another partition",
        (
            "TRUNCATE {t}",
            "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
            "INSERT INTO {t} VALUES (21, 'c')",
        ),
        None,
        create=_PARTITIONED,
    ),
    Story(
        "one partition with partitions truncated",
        ("TRUNCATE {t}_a", "INSERT INTO {t} VALUES (1, 'x')"),
        None,
        create=(_ROOT, *_NESTED),
        first="INSERT INTO {t} VALUES (1, 'a'), (6, 'b'), (11, 'c')",
    ),
    Story(
        "one partition of a partition truncated",
        ("TRUNCATE {t}_a2",),
        None,
        create=(_ROOT, *_NESTED),
        first="INSERT INTO {t} VALUES (1, 'a'), (6, 'b'), (11, 'c')",
    ),
    Story(
        "one partition truncated of a table that is a partition itself",
        ("TRUNCATE {t}_a", "INSERT INTO {t}_root VALUES (1, 'x')"),
        None,
        create=(
            "CREATE TABLE {t}_root (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE {t} PARTITION OF {t}_root FOR VALUES FROM (0) TO (20) PARTITION BY RANGE (id)",
            *_PARTS,
        ),
        first="INSERT INTO {t}_root VALUES (1, 'a'), (6, 'b'), (11, 'c')",
    ),
    Story(
        "row moved to another partition, which is truncated",
        ("UPDATE {t} SET id = 12 WHERE id = 1", "TRUNCATE {t}_b", "UPDATE {t} SET id = 13 WHERE id = 2"),
        None,
        create=_PARTITIONED,
    ),
    Story(
        "partition truncated that has no row of the shape",
        ("INSERT INTO {t} VALUES (11, 'c')", "TRUNCATE {t}_b", "INSERT INTO {t} VALUES (3, 'x')"),
        None,
        create=_PARTITIONED,
        where="id < 10",
    ),
)


@pytest.fixture(scope="module", params=in_turn(["while running", "while down"]))
def outcomes(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    return play(STORIES, broker, tmp_path_factory.mktemp("schema"), down=request.param == "while down")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_shape_equals_its_query_or_has_ended(outcomes: dict[str, Outcome], story: Story) -> None:
    """Survivors are right, and a shape that cannot be kept ends with a reason that names the table."""
    story.check(outcomes[story.name])


@pytest.mark.parametrize(
    ("publication", "changes", "reason"),
    [
        (
            "FOR TABLES IN SCHEMA public",
            (
                "ALTER TABLE t SET SCHEMA elsewhere",
                "INSERT INTO elsewhere.t VALUES (7, 'unpublished')",
                "ALTER TABLE elsewhere.t SET SCHEMA public",
            ),
            "table public.t was in another schema for a time",
        ),
        (
            "FOR TABLES IN SCHEMA public",
            (
                "ALTER TABLE t_a SET SCHEMA elsewhere",
                "ALTER TABLE elsewhere.t_a SET SCHEMA public",
            ),
            "partition public.t_a of table public.t was in another schema for a time",
        ),
        (
            "FOR TABLE t",
            (
                """
                BEGIN; CREATE TABLE t_c (LIKE t INCLUDING ALL); INSERT INTO t_c VALUES (21, 'unpublished');
                ALTER TABLE t ATTACH PARTITION t_c FOR VALUES FROM (20) TO (30); COMMIT
                """,
            ),
            "partition public.t_c was attached to table public.t and may have had rows",
        ),
    ],
    ids=["table in another schema", "partition in another schema", "partition filled before it was attached"],
)
def test_shape_ends_after_its_rows_were_not_published_for_a_time(
    rig: CaptureRig, publication: str, changes: tuple[str, ...], reason: str
) -> None:
    """All is as before when capture looks again, or it all came in one transaction."""
    rig.server.execute("DROP PUBLICATION shapes", *(text.format(t="t") for text in _PARTITIONED))
    rig.server.execute("CREATE SCHEMA elsewhere", f"CREATE PUBLICATION shapes {publication}")
    rig.define(shape("t", "public.t"))
    capture = rig.start()
    rig.wait(lambda: "t" in rig.registry(), "the shape")
    capture.stop()
    rig.server.execute(*changes)
    rig.start()
    rig.wait(lambda: rig.registry()["t"].removed_at is not None, "the end of the shape")
    assert reason in (rig.registry()["t"].ended_because or "")


def test_partition_that_is_created_and_filled_in_one_transaction_keeps_the_shape(rig: CaptureRig) -> None:
    """The publication contains its root, and so contains it from its creation on."""
    rig.server.execute("DROP PUBLICATION shapes", *(text.format(t="t") for text in _PARTITIONED))
    rig.server.execute("CREATE PUBLICATION shapes FOR TABLE t")
    rig.define(shape("t", "public.t"))
    rig.start()
    rig.wait(lambda: "t" in rig.registry(), "the shape")
    create = "CREATE TABLE t_c PARTITION OF t FOR VALUES FROM (20) TO (30)"
    run_in_transaction(rig.server, [create, "INSERT INTO t VALUES (21, 'c')"])
    rig.execute_and_wait("SELECT 1")
    rig.wait(lambda: rig.operations("t") == ["insert"], "the row")
    assert rig.registry()["t"].removed_at is None


def test_truncate_that_is_sent_again_after_another_partition_got_rows_keeps_the_shape(rig: CaptureRig) -> None:
    """It was a TRUNCATE of the partitions that the table had then."""
    rig.server.execute(*(text.format(t="t") for text in _PARTITIONED))
    rig.define(shape("t", "public.t"))
    capture = rig.start()
    rig.wait(lambda: "t" in rig.registry(), "the shape")
    rig.execute_and_wait("INSERT INTO t VALUES (1, 'a')", "TRUNCATE t")
    rig.server.execute("CREATE TABLE t_c PARTITION OF t FOR VALUES FROM (20) TO (30)")
    rig.execute_and_wait("INSERT INTO t VALUES (21, 'c')")
    capture.stop()
    rig.start()
    rig.execute_and_wait("INSERT INTO t VALUES (22, 'd')")
    emptied = ["truncate_partition"] * 2
    rig.wait(lambda: rig.operations("t") == ["insert", *emptied, "insert", "insert"], "the last row")
    assert rig.registry()["t"].removed_at is None


def test_partition_that_is_sent_again_under_an_earlier_name_does_not_join(rig: CaptureRig) -> None:
    """The shape was added after the partition was renamed; what came before concerns other shapes."""
    rig.server.execute(*(text.format(t="t") for text in _PARTITIONED))
    rig.define(shape("before", "public.t"))
    capture = rig.start()
    rig.wait(lambda: "before" in rig.registry(), "the first shape")
    rig.execute_and_wait("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t_a RENAME TO t_z")
    rig.wait(lambda: rig.registry()["before"].removed_at is not None, "the end of the first shape")
    rig.define(shape("after", "public.t"))
    rig.wait(lambda: "after" in rig.registry(), "the second shape")
    rig.execute_and_wait("TRUNCATE t", "INSERT INTO t VALUES (2, 'b')")
    capture.stop()
    rig.start()
    rig.execute_and_wait("INSERT INTO t VALUES (3, 'c')")
    emptied = ["truncate_partition"] * 2
    rig.wait(lambda: rig.operations("after") == [*emptied, "insert", "insert"], "the last row")
    assert rig.registry()["after"].removed_at is None


def test_default_of_a_new_column_ends_shapes_on_a_partition_and_on_its_root(rig: CaptureRig) -> None:
    """Both tables are compared with the catalog at once, and old rows of the partition are rows of both."""
    rig.server.execute(
        "CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE events_a PARTITION OF events FOR VALUES FROM (0) TO (10)",
    )
    rig.define(shape("root", "public.events"), shape("leaf", "public.events_a"))
    rig.start()
    rig.wait(lambda: {"root", "leaf"} <= rig.registry().keys(), "both shapes")
    rig.server.execute("INSERT INTO events VALUES (1)", "ALTER TABLE events ADD n int DEFAULT 17")
    rig.wait(lambda: {"root", "leaf"} <= rig.removals().keys(), "the end of both shapes")
    for entry in rig.registry().values():
        assert "column n was added" in (entry.ended_because or "")
