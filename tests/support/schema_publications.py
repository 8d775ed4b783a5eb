"""What changes the publication, or a whole schema, and so may end the shapes of every table."""

from typing import Final

from tests.support.schema_statements import MANAGED, NONE, PUBLICATIONS, each

_ALL: Final = frozenset({PUBLICATIONS[0]})
_SINGLE: Final = frozenset({PUBLICATIONS[1]})
_MANAGED: Final = frozenset({MANAGED})
_SCHEMA: Final = frozenset({PUBLICATIONS[3]})
_NOT_ALL: Final = frozenset(PUBLICATIONS[1:])
_UPDATE: Final = "UPDATE {t} SET v = 'n{k}'"
_TABLE: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v text, w int DEFAULT 1, u text)"

UNPUBLISHED: Final = (
    *each((("ALTER PUBLICATION shapes DROP TABLE {t}",),), NONE, _SINGLE | _MANAGED),
    *each((("DROP PUBLICATION shapes",),), NONE, _ALL, since=18),
    *each((("ALTER PUBLICATION shapes DROP TABLES IN SCHEMA public",),), NONE, _SCHEMA),
)
"""What takes a table out of the publication, in the order of :data:`PUBLISHED`, which puts it in again."""
PUBLISHED: Final = (
    *each((("ALTER PUBLICATION shapes ADD TABLE {t}",),), NONE, _SINGLE | _MANAGED),
    *each((("CREATE PUBLICATION shapes FOR ALL TABLES",),), NONE, _ALL, since=18),
    *each((("ALTER PUBLICATION shapes ADD TABLES IN SCHEMA public",),), NONE, _SCHEMA),
)

DELICATE: Final = (
    *each(
        (
            "ALTER PUBLICATION shapes DROP TABLE {t}",
            ("ALTER PUBLICATION shapes DROP TABLE {t}", _UPDATE, "ALTER PUBLICATION shapes ADD TABLE {t}"),
            ("ALTER PUBLICATION shapes DROP TABLE {t}", "ALTER PUBLICATION shapes ADD TABLE {t} WHERE (id < 5)"),
            ("ALTER PUBLICATION shapes DROP TABLE {t}", "ALTER PUBLICATION shapes ADD TABLE {t} (id)"),
            ("ALTER PUBLICATION shapes SET TABLE {t}",),
            ("ALTER PUBLICATION shapes ADD TABLE {t}_a", "ALTER PUBLICATION shapes DROP TABLE {t}"),
            "ALTER PUBLICATION shapes ADD TABLE {t}",
        ),
        NONE,
        _SINGLE | _MANAGED,
    ),
    *each(
        (
            (
                "ALTER PUBLICATION shapes DROP TABLES IN SCHEMA public",
                _UPDATE,
                "ALTER PUBLICATION shapes ADD TABLES IN SCHEMA public",
            ),
            "ALTER PUBLICATION shapes ADD TABLES IN SCHEMA public",
        ),
        NONE,
        _NOT_ALL,
    ),
    # Before 18, the server cannot decode what was written while there was no publication.
    *each((("DROP PUBLICATION shapes", _UPDATE, "CREATE PUBLICATION shapes FOR ALL TABLES"),), NONE, _ALL, since=18),
    *each(
        (
            (
                "ALTER PUBLICATION shapes SET (publish = 'insert')",
                _UPDATE,
                "ALTER PUBLICATION shapes SET (publish = 'insert, update, delete, truncate')",
            ),
            (
                "ALTER PUBLICATION shapes SET (publish_via_partition_root = true)",
                _UPDATE,
                "ALTER PUBLICATION shapes SET (publish_via_partition_root = false)",
            ),
        ),
        NONE,
    ),
    # Another schema takes the name, for a time or for good, and both have rows.
    *each(
        (
            (
                "ALTER SCHEMA public RENAME TO green",
                "UPDATE green.{t} SET v = 'n'",
                "ALTER SCHEMA green RENAME TO public",
            ),
            ("ALTER SCHEMA public RENAME TO green", "CREATE SCHEMA public", _TABLE, "UPDATE green.{t} SET v = 'g{k}'"),
            (
                "ALTER SCHEMA public RENAME TO green",
                "CREATE SCHEMA public",
                _TABLE,
                "INSERT INTO {t} (id, v) VALUES ({k}, 'n')",
                "DROP SCHEMA public CASCADE",
                "ALTER SCHEMA green RENAME TO public",
            ),
            # Both or neither: without it, a history has no tables any more.
            "DO $$ BEGIN DROP SCHEMA public CASCADE; ALTER SCHEMA green RENAME TO public; END $$",
            ("ALTER TABLE {t} SET SCHEMA elsewhere", _TABLE, "UPDATE elsewhere.{t} SET v = 'e{k}'", _UPDATE),
        ),
        NONE,
    ),
    *each(
        (
            "ALTER PUBLICATION shapes SET (publish_generated_columns = stored)",
            ("ALTER PUBLICATION shapes SET (publish_generated_columns = stored)", _UPDATE),
            "ALTER PUBLICATION shapes SET (publish_generated_columns = none)",
        ),
        NONE,
        since=18,
    ),
)
