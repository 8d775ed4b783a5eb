"""What changes the partitions of a table."""

from typing import Final

from tests.support.schema_statements import KEYED, NONE, PARTITIONED, each

_ATTACH_C: Final = "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (100) TO (200)"
_UNLOGGED_C: Final = (
    "CREATE UNLOGGED TABLE {t}_c (LIKE {t} INCLUDING ALL)",
    "INSERT INTO {t}_c (id, v) VALUES (101, 'n'), (102, 'o')",
)
_FILLED_C: Final = (
    "CREATE TABLE {t}_c (LIKE {t} INCLUDING ALL)",
    "INSERT INTO {t}_c (id, v) VALUES (101, 'n'), (102, 'o')",
)
_KEYLESS_C: Final = (
    "CREATE TABLE {t}_c (LIKE {t})",
    "ALTER TABLE {t}_c REPLICA IDENTITY FULL",
    "INSERT INTO {t}_c (id, v) VALUES (101, 'n'), (101, 'o')",
    "DELETE FROM {t}_c WHERE v = 'n'",
)
PARTITIONS: Final = (
    *each(
        (
            "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
            (
                "CREATE TABLE {t}_d PARTITION OF {t} FOR VALUES FROM (200) TO (300)",
                "INSERT INTO {t} (id, v) VALUES (210, 'n')",
            ),
            ("CREATE TABLE {t}_e (LIKE {t})", "ALTER TABLE {t} ATTACH PARTITION {t}_e FOR VALUES FROM (300) TO (400)"),
            "ALTER TABLE {t}_a REPLICA IDENTITY FULL",
            "TRUNCATE {t}_a",
            ("TRUNCATE {t}_a", "INSERT INTO {t} (id, v) VALUES (3, 'n')"),
            "TRUNCATE {t}_a, {t}_b",
            ("TRUNCATE {t}_a", "TRUNCATE {t}_b"),
            ("TRUNCATE {t}_a", "INSERT INTO {t} (id, v) VALUES (2, 'n')", "TRUNCATE {t}_b"),
            "TRUNCATE {t}_b",
        ),
        KEYED,
        PARTITIONED,
    ),
    *each(("CREATE INDEX ON {t}_a (v)", "VACUUM FULL {t}_a"), only=PARTITIONED),
    *each(
        (
            "DROP TABLE {t}_a",
            "DROP TABLE {t}_b",
            (
                "DROP TABLE {t}_a",
                "CREATE TABLE {t}_a (id int PRIMARY KEY, v text, w int)",
                "INSERT INTO {t}_a VALUES (5, 'n', 1)",
            ),
            ("DROP TABLE {t}_a", "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (10)"),
            "ALTER TABLE {t} DETACH PARTITION {t}_b",
            ("ALTER TABLE {t} DETACH PARTITION {t}_b", "UPDATE {t}_b SET v = 'n{k}'"),
            "ALTER TABLE {t} ATTACH PARTITION {t}_b FOR VALUES FROM (10) TO (100)",
            (
                "ALTER TABLE {t} DETACH PARTITION {t}_a",
                "UPDATE {t}_a SET v = 'n{k}'",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            (
                "ALTER TABLE {t} DETACH PARTITION {t}_a",
                "TRUNCATE {t}_a",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            ("ALTER TABLE {t}_a RENAME TO {t}_z", "INSERT INTO {t} (id, v) VALUES (4, 'n') ON CONFLICT DO NOTHING"),
            ("ALTER TABLE {t}_a RENAME TO {t}_z", "UPDATE {t} SET v = 'n{k}'", "ALTER TABLE {t}_z RENAME TO {t}_a"),
            "ALTER TABLE {t}_z RENAME TO {t}_a",
            ("ALTER TABLE {t}_a RENAME TO {t}_z", "ALTER TABLE {t}_b RENAME TO {t}_a", "UPDATE {t} SET v = 'n{k}'"),
            "ALTER TABLE {t}_a SET UNLOGGED",
            ("ALTER TABLE {t}_a SET UNLOGGED", "UPDATE {t}_a SET v = 'n{k}'"),
            (
                "CREATE TABLE {t}_c (LIKE {t})",
                "INSERT INTO {t}_c (id, v) VALUES (101, 'n')",
                "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (100) TO (200)",
            ),
            (
                "CREATE TABLE {t}_c (LIKE {t} INCLUDING ALL)",
                "INSERT INTO {t}_c (id, v) VALUES (101, 'n'), (102, 'o')",
                "DELETE FROM {t}_c WHERE id = 101",
                "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (100) TO (200)",
                "UPDATE {t} SET v = 'n{k}'",
            ),
            (
                "CREATE TABLE {t}_c (LIKE {t} INCLUDING ALL) PARTITION BY RANGE (id)",
                "CREATE TABLE {t}_c1 PARTITION OF {t}_c FOR VALUES FROM (100) TO (150)",
                "INSERT INTO {t}_c (id, v) VALUES (101, 'n')",
                "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (100) TO (200)",
            ),
            (
                "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
                "INSERT INTO {t} (id, v) VALUES (103, 'n')",
                "DROP TABLE {t}_c",
            ),
            "DROP TABLE {t}_c",
            "TRUNCATE {t}_c",
            "ALTER TABLE {t} DETACH PARTITION {t}_c",
            ("CREATE UNLOGGED TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (100) TO (200)", "UPDATE {t} SET v = 'n'"),
            ("CREATE TABLE {t}_parent (LIKE {t} INCLUDING ALL) PARTITION BY RANGE (id)",),
            "ALTER TABLE {t}_parent ATTACH PARTITION {t} FOR VALUES FROM (MINVALUE) TO (1000)",
            "ALTER TABLE {t}_b RENAME TO {t}_z",
            ("ALTER TABLE {t}_a SET SCHEMA elsewhere", "UPDATE {t} SET v = 'n{k}'"),
            (
                "ALTER TABLE {t}_a SET SCHEMA elsewhere",
                "UPDATE {t} SET v = 'n{k}'",
                "ALTER TABLE elsewhere.{t}_a SET SCHEMA public",
            ),
        ),
        NONE,
        PARTITIONED,
    ),
    # Rows that were not sent as the table's, or of the leaf alone, when the partition is attached.
    *each(
        (
            (
                "ALTER TABLE {t} DETACH PARTITION {t}_a",
                "INSERT INTO {t}_a (id, v) VALUES (-{k}, 'n')",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            (
                "ALTER TABLE {t} DETACH PARTITION {t}_b",
                "INSERT INTO {t}_b (id, v) VALUES (75 + {k}, 'n')",
                "ALTER TABLE {t} ATTACH PARTITION {t}_b FOR VALUES FROM (10) TO (100)",
            ),
            (
                "ALTER TABLE {t}_b DETACH PARTITION {t}_b1",
                "UPDATE {t}_b1 SET v = 'n{k}'",
                "ALTER TABLE {t}_b ATTACH PARTITION {t}_b1 FOR VALUES FROM (10) TO (20)",
            ),
            "DROP TABLE {t}_b1",
            "TRUNCATE {t}_b1",
            "ALTER TABLE {t} DETACH PARTITION {t}_a CONCURRENTLY",
            (*_UNLOGGED_C, "ALTER TABLE {t}_c SET LOGGED", _ATTACH_C),
            (*_UNLOGGED_C, "ALTER TABLE {t}_c SET LOGGED", _ATTACH_C, "UPDATE {t} SET v = 'n{k}'"),
            (
                "CREATE UNLOGGED TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
                "INSERT INTO {t} (id, v) VALUES (105, 'n')",
                "ALTER TABLE {t}_c SET LOGGED",
            ),
            (*_FILLED_C, "ALTER TABLE {t}_c ALTER v TYPE text USING 'n' || v", _ATTACH_C),
            (*_FILLED_C, "ALTER TABLE {t}_c ADD n{k} int DEFAULT 5", "ALTER TABLE {t} ADD n{k} int", _ATTACH_C),
            (*_KEYLESS_C, _ATTACH_C),
            (
                *_FILLED_C,
                *(f"ALTER TABLE {{t}}_c RENAME {names}" for names in ("v TO y", "u TO v", "y TO u")),
                _ATTACH_C,
            ),
            (*_FILLED_C, "TRUNCATE {t}_c", "INSERT INTO {t}_c (id, v) VALUES (104, 'n')", _ATTACH_C),
            (
                *_FILLED_C,
                "ALTER TABLE {t}_c SET UNLOGGED",
                "UPDATE {t}_c SET v = 'o'",
                "ALTER TABLE {t}_c SET LOGGED",
                _ATTACH_C,
            ),
            ("ALTER TABLE {t}_a SET UNLOGGED", "UPDATE {t}_a SET v = 'n{k}'", "ALTER TABLE {t}_a SET LOGGED"),
            (
                "ALTER TABLE {t}_a SET UNLOGGED",
                "INSERT INTO {t} (id, v) VALUES (-{k}, 'n')",
                "ALTER TABLE {t}_a SET LOGGED",
            ),
            "ALTER TABLE {t}_a SET LOGGED",
            (
                "ALTER TABLE {t} DETACH PARTITION {t}_a",
                "ALTER TABLE {t}_a SET UNLOGGED",
                "UPDATE {t}_a SET v = 'n{k}'",
                "ALTER TABLE {t}_a SET LOGGED",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            ("CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (100) TO (200)", "ALTER TABLE {t}_c RENAME v TO y"),
            "ALTER TABLE ONLY {t} DROP CONSTRAINT {t}_pkey",
            ("ALTER TABLE {t}_a DROP CONSTRAINT {t}_a_pkey", "INSERT INTO {t} (id, v) VALUES (3, 'n'), (3, 'o')"),
            # The oldest partition goes, and a new one comes.
            (
                "CREATE TABLE {t}_d PARTITION OF {t} FOR VALUES FROM (200) TO (300)",
                "INSERT INTO {t} (id, v) VALUES (210, 'n')",
                "DROP TABLE {t}_a",
            ),
            ("ALTER TABLE {t} DETACH PARTITION {t}_a", "DROP TABLE {t}_a"),
            ("ALTER TABLE {t} DETACH PARTITION {t}_a", "UPDATE {t} SET v = 'n{k}'", "TRUNCATE {t}_a"),
        ),
        NONE,
        PARTITIONED,
    ),
    # The first partitions of a root.
    *each(
        (
            (
                "CREATE UNLOGGED TABLE {t}_a (LIKE {t} INCLUDING ALL)",
                "INSERT INTO {t}_a (id, v) VALUES (5, 'n')",
                "ALTER TABLE {t}_a SET LOGGED",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            (
                "CREATE TABLE {t}_a (LIKE {t} INCLUDING ALL)",
                "INSERT INTO {t}_a (id, v) VALUES (5, 'n')",
                "ALTER TABLE {t} ATTACH PARTITION {t}_a FOR VALUES FROM (MINVALUE) TO (10)",
            ),
            (
                "CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (10)",
                "INSERT INTO {t} (id, v) VALUES (5, 'n')",
            ),
            (
                "CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES FROM (10) TO (100)",
                "INSERT INTO {t} (id, v) VALUES (15, 'n')",
            ),
        ),
        NONE,
        ("bare",),
    ),
)
"""What changes the partitions of a table, with rows in between."""
