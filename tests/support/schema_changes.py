"""What changes the schema of a table, and of its partitions, with rows in between."""

from typing import Final

from tests.support.schema_partitions import PARTITIONS
from tests.support.schema_statements import EVERY, KEYED, NONE, PLAIN, SELECTING, WITHOUT_KEY, each

_ROOT: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v text, w int DEFAULT 1, u text)"
_SWAP: Final = (
    "ALTER TABLE {t} RENAME v TO y",
    "ALTER TABLE {t} RENAME u TO v",
    "ALTER TABLE {t} RENAME y TO u",
)
_GREEN: Final = (
    "ALTER TABLE {t} RENAME TO {t}_new",
    "CREATE TABLE {t} (LIKE {t}_new INCLUDING ALL)",
    "INSERT INTO {t} (id, v, w) SELECT id, v, w FROM {t}_new",
)
SCHEMAS: Final = (
    *each(
        (
            "ALTER TABLE {t} ADD n{k} int",
            ("ALTER TABLE {t} ADD n{k} int", "UPDATE {t} SET n{k} = {k}"),
            "CREATE INDEX ON {t} (v)",
            "VACUUM FULL {t}",
            "ANALYZE {t}",
            "CREATE PUBLICATION other{k} FOR TABLE {t}",
            "ALTER TABLE {t} ADD CHECK (id > -1000000)",
        )
    ),
    *each(
        (
            *("REINDEX TABLE {t}", "REINDEX TABLE CONCURRENTLY {t}"),
            *("CREATE UNIQUE INDEX {t}_v{k} ON {t} (id, v)", "CREATE INDEX CONCURRENTLY ON {t} (w)"),
            *("CLUSTER {t} USING {t}_pkey", "ALTER TABLE {t} ALTER v SET STATISTICS 50"),
            *("ALTER TABLE {t} SET (fillfactor = 90)", "COMMENT ON TABLE {t} IS '{k}'"),
            *("GRANT SELECT ON {t} TO PUBLIC", "CREATE STATISTICS {t}_s{k} ON v, w FROM {t}", "VACUUM {t}"),
        )
    ),
    *each(("ALTER TABLE {t} REPLICA IDENTITY FULL", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT"), KEYED),
    *each(
        (
            "ALTER TABLE {t} ADD n{k} int DEFAULT {k}",
            ("ALTER TABLE {t} ADD n{k} int DEFAULT 5", "ALTER TABLE {t} ALTER n{k} DROP DEFAULT"),
            ("ALTER TABLE {t} ADD n{k} int DEFAULT 5", "VACUUM FULL {t}"),
            "ALTER TABLE {t} ALTER w SET DEFAULT {k}",
            "ALTER TABLE {t} ALTER w DROP DEFAULT",
            "ALTER TABLE {t} DROP w",
            ("ALTER TABLE {t} DROP w", "ALTER TABLE {t} ADD w int"),
            "ALTER TABLE {t} RENAME w TO x",
            ("ALTER TABLE {t} RENAME w TO x", "ALTER TABLE {t} RENAME x TO w"),
            "ALTER TABLE {t} ALTER w SET NOT NULL",
        ),
        SELECTING,
    ),
    *each(
        (
            # They rewrite the rows, as if the table was made unlogged and logged again.
            "ALTER TABLE {t} ADD n{k} float DEFAULT random()",
            "ALTER TABLE {t} ALTER w TYPE bigint",
            "ALTER TABLE {t} ALTER w TYPE int USING w + 1",
            "ALTER TABLE {t} ALTER v SET DEFAULT 'n'",
            "ALTER TABLE {t} RENAME v TO y",
            "ALTER TABLE {t} RENAME y TO v",
            ("ALTER TABLE {t} RENAME v TO y", "UPDATE {t} SET y = 'n{k}'", "ALTER TABLE {t} RENAME y TO v"),
            ("ALTER TABLE {t} RENAME v TO y", "ALTER TABLE {t} RENAME w TO v", "ALTER TABLE {t} RENAME y TO w"),
            "ALTER TABLE {t} DROP v",
            ("ALTER TABLE {t} DROP v", "ALTER TABLE {t} ADD v text"),
            ("ALTER TABLE {t} DROP v", "ALTER TABLE {t} ADD v text DEFAULT 'n'"),
            "ALTER TABLE {t} ALTER v TYPE text USING upper(v)",
            "ALTER TABLE {t} ALTER v TYPE varchar(2000) USING left(v, 2)",
            "ALTER TABLE {t} RENAME TO {t}_new",
            "ALTER TABLE {t}_new RENAME TO {t}",
            ("ALTER TABLE {t} RENAME TO {t}_new", "UPDATE {t}_new SET v = 'n{k}'", "ALTER TABLE {t}_new RENAME TO {t}"),
            ("ALTER TABLE {t} RENAME TO {t}_new", _ROOT),
            ("ALTER TABLE {t} SET SCHEMA elsewhere",),
            (
                "ALTER TABLE {t} SET SCHEMA elsewhere",
                "UPDATE elsewhere.{t} SET v = 'n{k}'",
                "ALTER TABLE elsewhere.{t} SET SCHEMA public",
            ),
            ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} ADD PRIMARY KEY (id, w)"),
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
                "ALTER TABLE {t} ADD PRIMARY KEY (id, w)",
                "INSERT INTO {t} (id, v, w) SELECT id, 'twice', w + 100 FROM {t} LIMIT 2",
            ),
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
            (
                "CREATE UNIQUE INDEX {t}_u{k} ON {t} (w)",
                "ALTER TABLE {t} ALTER w SET NOT NULL",
                "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_u{k}",
            ),
            "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
            "DROP TABLE {t}",
            ("DROP TABLE {t}", _ROOT),
            ("DROP TABLE {t}", f"{_ROOT} PARTITION BY RANGE (id)"),
        ),
        NONE,
    ),
    *each(
        (
            "ALTER TABLE {t} SET UNLOGGED",
            ("ALTER TABLE {t} SET UNLOGGED", "UPDATE {t} SET v = 'n{k}'"),
            ("CREATE TABLE {t}_child () INHERITS ({t})", "INSERT INTO {t}_child (id, v) VALUES (59, 'n')"),
            (
                "CREATE TABLE {t}_child () INHERITS ({t})",
                "INSERT INTO {t}_child (id, v) VALUES (58, 'n')",
                "UPDATE {t} SET v = 'n{k}'",
                "DROP TABLE {t}_child",
            ),
        ),
        NONE,
        only=PLAIN,
    ),
    *each(("ALTER TABLE {t} ALTER g DROP EXPRESSION",) * 3, NONE, frozenset({"generated"})),
    # Without a key, rows can only be deleted by their whole values.
    *each(
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
                "INSERT INTO {t} (id, v) VALUES (3, 'twice')",
                "DELETE FROM {t} WHERE v = 'twice'",
                "ALTER TABLE {t} ADD PRIMARY KEY (id)",
            ),
        ),
        NONE,
        frozenset({"full", "full halves"}),
    ),
    # It may be an ordinary column by then.
    *each(("ALTER TABLE {t} DROP g",), SELECTING, frozenset({"generated"})),
    # Columns of one type take each other's names, for a time or for good.
    *each(
        (
            _SWAP,
            (*_SWAP, "UPDATE {t} SET v = 'n{k}', u = 'm{k}' WHERE id > {k}", *_SWAP),
            (*_SWAP, "INSERT INTO {t} (id, v, u) SELECT 60 + {k}, 'n', 'm'", *_SWAP),
            (*_SWAP, "DELETE FROM {t} WHERE v = 'n'", *_SWAP),
        ),
        NONE,
    ),
    # Keys: dropped and created again, of other columns, or no longer unique.
    *each(
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
                "INSERT INTO {t} (id, v) VALUES ({k}, 'n'), ({k}, 'o')",
                "DELETE FROM {t} WHERE v = 'o'",
                "DELETE FROM {t} WHERE id = {k}",
                "ALTER TABLE {t} ADD PRIMARY KEY (id)",
            ),
            ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} ADD PRIMARY KEY (id) DEFERRABLE"),
            ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "INSERT INTO {t} (id, v) VALUES (3, 'n'), (3, 'o')"),
            ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} ALTER id DROP NOT NULL"),
            (
                "CREATE UNIQUE INDEX {t}_k{k} ON {t} (id)",
                "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_k{k}",
                "DROP INDEX {t}_k{k}",
            ),
            ("ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_i", "DROP INDEX {t}_i"),
        ),
        NONE,
    ),
    *each(
        (
            "DROP INDEX {t}_i",
            ("DROP INDEX {t}_i", "INSERT INTO {t} (id, v) VALUES ({k}, 'n'), ({k}, 'o')"),
            ("DROP INDEX {t}_i", "CREATE UNIQUE INDEX {t}_i ON {t} (id)"),
            (
                "DROP INDEX {t}_i",
                "CREATE UNIQUE INDEX {t}_i ON {t} (id)",
                "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_i",
            ),
            ("ALTER TABLE {t} REPLICA IDENTITY FULL", "DROP INDEX {t}_i", "INSERT INTO {t} (id, v) VALUES (3, 'o')"),
            "ALTER TABLE {t} ADD PRIMARY KEY (id)",
            "CREATE UNIQUE INDEX CONCURRENTLY {t}_j ON {t} (id)",
        ),
        NONE,
        {"indexed", *WITHOUT_KEY},
    ),
    # Values whose text depends on the name of another object.
    *each(
        (
            "ALTER TABLE {t}_named RENAME TO {t}_named2",
            "ALTER TABLE {t}_named2 RENAME TO {t}_named",
            "DROP TABLE {t}_named",
        ),
        NONE,
        ("names",),
    ),
    *each(
        (
            "ALTER TABLE {t} ALTER g SET EXPRESSION AS (w * 3)",
            "ALTER TABLE {t} ADD h int GENERATED ALWAYS AS (id + 1) STORED",
            "ALTER TABLE {t} ADD h int GENERATED ALWAYS AS (id + 1) VIRTUAL",
        ),
        NONE,
        since=17,
    ),
    # What is written while a table is unlogged is not in the WAL.
    *each(
        (
            (
                "ALTER TABLE {t} SET UNLOGGED",
                "INSERT INTO {t} (id, v) VALUES (70 + {k}, 'n')",
                "ALTER TABLE {t} SET LOGGED",
            ),
            ("ALTER TABLE {t} SET UNLOGGED", "UPDATE {t} SET v = 'n{k}'", "ALTER TABLE {t} SET LOGGED"),
            "ALTER TABLE {t} SET LOGGED",
            (
                "DROP TABLE {t}",
                _ROOT.replace("CREATE", "CREATE UNLOGGED"),
                "INSERT INTO {t} (id, v) VALUES (71, 'n')",
                "ALTER TABLE {t} SET LOGGED",
            ),
        ),
        NONE,
        PLAIN,
    ),
    # Another table, or another schema, takes the name; with rows of both, and for a time or for good.
    *each(
        (
            (*_GREEN, "UPDATE {t}_new SET v = 'b{k}'"),
            (*_GREEN, "UPDATE {t}_new SET v = 'b{k}'", "UPDATE {t} SET v = 'n{k}'"),
            (*_GREEN, "UPDATE {t} SET v = 'n{k}'", "DROP TABLE {t}", "ALTER TABLE {t}_new RENAME TO {t}"),
            (*_GREEN, "DELETE FROM {t}_new", "DROP TABLE {t}_new"),
        ),
        NONE,
    ),
    *PARTITIONS,
)
"""What changes a table's schema, with rows in between."""
SURVIVABLE: Final = tuple(change for change in SCHEMAS if change.keeps in (EVERY, KEYED, SELECTING))
"""Those that some kind of shape must always survive."""
