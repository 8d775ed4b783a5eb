"""Keys on a real server: a shape has one only while a unique index ensures that no two rows have the same.

In a log by key, rows of one key collapse, and each change of one of them is taken for a change of the other.
"""

from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.schema_story import PLAIN, Story, play
from tests.support.seeds import in_turn
from tests.support.shape_outcome import Outcome

_ENDS: Final = "the key of table public.t[0-9]+ [(]id[)]"
_FULL: Final = "ALTER TABLE {t} REPLICA IDENTITY FULL"
_INDEXED: Final = (
    "CREATE TABLE {t} (id int NOT NULL, v text, w int)",
    "CREATE UNIQUE INDEX {t}_u ON {t} (id)",
    _FULL,
)
_CONSTRAINED: Final = ("CREATE TABLE {t} (id int NOT NULL CONSTRAINT {t}_u UNIQUE, v text, w int)", _FULL)
_TWICE: Final = ("INSERT INTO {t} VALUES (2, 'twice')", "DELETE FROM {t} WHERE v = 'twice'")
_INSERT: Final = "INSERT INTO {t} VALUES (3, 'c')"
_NEXT: Final = "UPDATE {t} SET id = id + 1"
STORIES: Final = (
    Story(
        "index dropped and created again",
        ("DROP INDEX {t}_u", *_TWICE, "CREATE UNIQUE INDEX {t}_u ON {t} (id)"),
        _ENDS,
        _INDEXED,
    ),
    Story(
        "index disabled and enabled again",
        # As DROP INDEX CONCURRENTLY leaves it if it is interrupted.
        (
            """
            UPDATE pg_index SET indisvalid = false, indisready = false, indislive = false
            WHERE indexrelid = '{t}_u'::regclass
            """,
            *_TWICE,
            "REINDEX INDEX {t}_u",
        ),
        _ENDS,
        _INDEXED,
    ),
    Story(
        "replica identity that lacks the key",
        ("ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_w", "UPDATE {t} SET id = id + 10"),
        "primary_key names id, but old rows contain only w",
        ("CREATE TABLE {t} (id int PRIMARY KEY, v text, w serial)", "CREATE UNIQUE INDEX {t}_w ON {t} (w)", _FULL),
    ),
    Story(
        "constraint made deferrable",
        (
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (id) DEFERRABLE",
            _NEXT,
        ),
        _ENDS,
        (PLAIN, _FULL),
    ),
    Story(
        "NULL allowed for a time",
        (
            "ALTER TABLE {t} ALTER id DROP NOT NULL",
            "INSERT INTO {t} VALUES (NULL, 'c'), (NULL, 'd')",
            "DELETE FROM {t} WHERE id IS NULL",
            "ALTER TABLE {t} ALTER id SET NOT NULL",
        ),
        _ENDS,
        _CONSTRAINED,
    ),
    Story(
        "key of a partitioned table dropped",
        ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",),
        _ENDS,
        (
            "CREATE TABLE {t} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
            "ALTER TABLE {t}_a REPLICA IDENTITY FULL",
        ),
    ),
    Story(
        "primary key dropped, and another index has its columns",
        ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", _INSERT, "ALTER TABLE {t} ADD PRIMARY KEY (id)"),
        None,
        (PLAIN, "CREATE UNIQUE INDEX {t}_u ON {t} (id)", _FULL),
    ),
    Story("unique index as the key, under FULL", (_INSERT, "UPDATE {t} SET id = id + 10"), None, _INDEXED),
    Story(
        "index rebuilt",
        ("REINDEX INDEX {t}_u", _INSERT, "VACUUM FULL {t}", "UPDATE {t} SET v = 'x'"),
        None,
        _INDEXED,
    ),
)


@pytest.fixture(scope="module", params=in_turn(["while running", "while down"]))
def outcomes(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    return play(STORIES, broker, tmp_path_factory.mktemp("keys"), down=request.param == "while down")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_shape_ends_when_its_key_may_have_been_that_of_two_rows(outcomes: dict[str, Outcome], story: Story) -> None:
    """It survives whatever leaves its key unique all the time."""
    story.check(outcomes[story.name])
