"""What happens to rows behind the stream's back, on a real server: rewritten, unlogged for a time, or not published.

All is as before when capture looks again, or it all came in one transaction.
"""

from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, run_in_transaction, shape
from tests.support.schema_story import Story, play
from tests.support.seeds import in_turn
from tests.support.shape_outcome import Outcome

_INSERT: Final = "INSERT INTO {t} (id, v) VALUES (3, 'c')"
_UNLOGGED_PHASE: Final = (
    "BEGIN; ALTER TABLE {t} SET UNLOGGED; UPDATE {t} SET v = '7'; ALTER TABLE {t} SET LOGGED; COMMIT"
)
_SMALL: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v varchar(20))"
_ROOT: Final = "CREATE TABLE {t} (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)"
_PARTITIONED: Final = (
    _ROOT,
    "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES FROM (10) TO (20)",
)
_CREATE: Final = "BEGIN; CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
_FILL: Final = "INSERT INTO {t} VALUES (21, 'c');"
_UNLOGGED_C: Final = "ALTER TABLE {t}_c SET UNLOGGED;"
_LOGGED_C: Final = "ALTER TABLE {t}_c SET LOGGED;"
_ATTACHED_UNLOGGED: Final = """
BEGIN; CREATE UNLOGGED TABLE {t}_c (LIKE {t} INCLUDING ALL); INSERT INTO {t}_c VALUES (21, 'c');
ALTER TABLE {t}_c SET LOGGED; ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (20) TO (30); COMMIT
"""
_CREATE_C: Final = ("BEGIN", "CREATE TABLE {t}_c (id int NOT NULL, u text, v text)")
_FILL_C: Final = "INSERT INTO {t}_c VALUES (21, 'u', 'v')"
_ATTACH_C: Final = ("ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (20) TO (30)", "COMMIT")
_EXCHANGE: Final = ("v TO w", "u TO v", "w TO u")
_THREE: Final = (_ROOT.replace("v text", "v text, u text"),)
_ADD_FILLED: Final = "ALTER TABLE {t} ADD n int DEFAULT 5;"
STORIES: Final = (
    Story("vacuumed fully", ("VACUUM FULL {t}", _INSERT), None),
    Story("clustered", ("CLUSTER {t} USING {t}_pkey", _INSERT), None),
    Story("partition vacuumed fully", ("VACUUM FULL {t}_a", _INSERT), None, create=_PARTITIONED),
    Story(
        "truncated without a TOAST table", ("TRUNCATE {t}", _INSERT, "TRUNCATE {t}", _INSERT), None, create=(_SMALL,)
    ),
    Story("vacuumed fully without a TOAST table", ("VACUUM FULL {t}",), "were rewritten", create=(_SMALL,)),
    Story("unlogged, changed and logged again", (_UNLOGGED_PHASE, _INSERT), "were rewritten"),
    Story(
        "unlogged, changed and logged again, then vacuumed fully",
        (_UNLOGGED_PHASE, "VACUUM FULL {t}", _INSERT),
        "were rewritten",
    ),
    Story(
        "unlogged, changed and logged again, and another column rewritten",
        (_UNLOGGED_PHASE, "ALTER TABLE {t} ALTER w TYPE bigint"),
        "were rewritten",
        columns=("id", "v"),
    ),
    Story(
        "unlogged, changed and logged again, without a TOAST table",
        (_UNLOGGED_PHASE,),
        "were rewritten",
        create=(_SMALL,),
    ),
    Story(
        "truncated and loaded while unlogged, without a TOAST table",
        (_UNLOGGED_PHASE.replace("UPDATE {t} SET v = '7'", "TRUNCATE {t}; INSERT INTO {t} VALUES (5, '5')"),),
        "were rewritten",
        create=(_SMALL,),
    ),
    Story(
        "partition unlogged, changed and logged again",
        (_UNLOGGED_PHASE.replace("TABLE {t}", "TABLE {t}_a"),),
        "_a were rewritten",
        create=_PARTITIONED,
    ),
    *(
        Story(
            f"new partition {what}, {how} a TOAST table",
            (f"{_CREATE} COMMIT", f"BEGIN; {changes} COMMIT", "INSERT INTO {t} VALUES (22, 'd')"),
            "may have had rows|were rewritten",
            create=tuple(text.replace("v text", v) for text in _PARTITIONED),
        )
        for what, changes in (
            ("filled while unlogged", f"{_UNLOGGED_C} {_FILL} {_LOGGED_C}"),
            ("truncated and filled while unlogged", f"{_FILL} {_UNLOGGED_C} TRUNCATE {{t}}_c; {_FILL} {_LOGGED_C}"),
        )
        for how, v in (("with", "v text"), ("without", "v varchar(20)"))
    ),
    Story(
        "partition filled while unlogged and attached in one transaction",
        (_ATTACHED_UNLOGGED,),
        "was attached",
        create=_PARTITIONED,
    ),
    Story(
        "partition filled before its columns exchange names",
        ("; ".join((*_CREATE_C, _FILL_C, *(f"ALTER TABLE {{t}}_c RENAME {each}" for each in _EXCHANGE), *_ATTACH_C)),),
        "was attached",
        create=_THREE,
        first="SELECT 1",
    ),
    Story(
        "partition filled before it has a key",
        (
            "; ".join(
                (
                    *_CREATE_C,
                    "ALTER TABLE {t}_c REPLICA IDENTITY FULL",
                    *(_FILL_C, "INSERT INTO {t}_c VALUES (21, 'x', 'y')", "DELETE FROM {t}_c WHERE v = 'v'"),
                    *_ATTACH_C,
                )
            ),
        ),
        "was attached",
        create=_THREE,
        first="SELECT 1",
    ),
    Story(
        "partition filled before a column is added",
        (
            "; ".join(
                (*_CREATE_C, _FILL_C, "ALTER TABLE {t}_c DROP u, DROP v, ADD v text DEFAULT 'v'", *_ATTACH_C),
            ),
        ),
        "was attached",
        create=_PARTITIONED,
    ),
    Story(
        "column added with a default, and clustered",
        (f"BEGIN; {_ADD_FILLED} CLUSTER {{t}} USING {{t}}_pkey; COMMIT", _INSERT),
        "column n was added",
    ),
    Story(
        "column that is not listed added with a default, and clustered",
        (f"BEGIN; {_ADD_FILLED} CLUSTER {{t}} USING {{t}}_pkey; COMMIT", _INSERT),
        None,
        columns=("id", "v"),
    ),
    Story(
        "column added with a default, and a partition clustered",
        (f"BEGIN; {_ADD_FILLED} CLUSTER {{t}}_a USING {{t}}_a_pkey; ALTER TABLE {{t}} ALTER n DROP DEFAULT; COMMIT",),
        "column n was added",
        create=_PARTITIONED,
    ),
    Story(
        "first partition filled and rewritten in one transaction",
        (f"{_CREATE} {_FILL} ALTER TABLE {{t}} ALTER v TYPE text USING upper(v); COMMIT",),
        "was attached",
        create=(_ROOT,),
        first="SELECT 1",
    ),
    Story(
        "first partition filled, and then a column added",
        (f"{_CREATE} {_FILL} ALTER TABLE {{t}} ADD n float DEFAULT random(); COMMIT",),
        "was attached",
        create=(_ROOT,),
        first="SELECT 1",
    ),
    Story(
        "first partition created and filled in one transaction",
        (f"{_CREATE} {_FILL} COMMIT",),
        None,
        create=(_ROOT,),
        first="SELECT 1",
    ),
)


@pytest.fixture(scope="module", params=in_turn(["while running", "while down"]))
def outcomes(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    return play(STORIES, broker, tmp_path_factory.mktemp("rewrites"), down=request.param == "while down")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_shape_equals_its_query_or_has_ended(outcomes: dict[str, Outcome], story: Story) -> None:
    """Rows that changed without a trace end the shape; what only replaces the table's file does not."""
    story.check(outcomes[story.name])


@pytest.mark.parametrize(
    ("published", "table"), [("TABLE above.t", "b1"), ("TABLE above.t", "b"), ("TABLES IN SCHEMA above", "b1")]
)
def test_shape_on_a_partition_ends_after_the_link_to_what_publishes_it_was_interrupted(
    rig: CaptureRig, published: str, table: str
) -> None:
    """The partition, or the one above it, was detached and attached again: its rows were not published in between."""
    rig.server.execute(
        "CREATE SCHEMA above",
        "CREATE TABLE above.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE b PARTITION OF above.t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (10) TO (20)",
        "DROP PUBLICATION shapes",
        f"CREATE PUBLICATION shapes FOR {published}",
    )
    rig.define(shape("part", f"public.{table}"))
    capture = rig.start()
    rig.wait(lambda: "part" in rig.registry(), "the shape")
    rig.execute_and_wait("INSERT INTO above.t VALUES (11)")
    capture.stop()
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO above.t VALUES (12)")
    rig.wait(lambda: rig.operations("part") == ["insert"] * 2, "both rows")
    assert rig.registry()["part"].removed_at is None
    capture.stop()
    attach = "ALTER TABLE above.t ATTACH PARTITION b FOR VALUES FROM (10) TO (20)"
    run_in_transaction(rig.server, ["ALTER TABLE above.t DETACH PARTITION b", "INSERT INTO b VALUES (15)", attach])
    rig.start()
    rig.wait(lambda: rig.registry()["part"].removed_at is not None, "the end of the shape")
    assert "was not in the publication for a time" in (rig.registry()["part"].ended_because or "")
