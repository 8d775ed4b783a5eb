"""What a random history does to a table ``{t}``: layouts to create it in, and changes of its rows and its schema.

``{k}`` is a small number, different each time. A change says which kinds of shapes must survive it; that a shape ends
without such a change is a failure, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Layout: TypeAlias = Literal["plain", "full", "generated", "halves", "full halves", "tree"]
Kind: TypeAlias = Literal["all", "listed", "low", "text"]
KINDS: Final[tuple[Kind, ...]] = ("all", "listed", "low", "text")
LISTED: Final = ("id", "v")
WHERE: Final[dict[Kind, str]] = {"low": "id < 12", "text": "v LIKE 'n%'"}
LAYOUTS: Final[tuple[Layout, ...]] = ("plain", "full", "generated", "halves", "halves", "full halves", "tree")
_PLAIN: Final = frozenset({"plain", "full", "generated"})
_PARTITIONED: Final = frozenset({"halves", "full halves", "tree"})
PUBLICATIONS: Final = (
    "CREATE PUBLICATION shapes FOR ALL TABLES",
    "CREATE PUBLICATION shapes",
    "CREATE PUBLICATION shapes FOR TABLES IN SCHEMA public",
)
_EVERY: Final[frozenset[Kind]] = frozenset(KINDS)
_KEYED: Final[frozenset[Kind]] = frozenset({"all", "listed", "low"})
_SELECTING: Final[frozenset[Kind]] = frozenset({"listed", "text"})
_NONE: Final[frozenset[Kind]] = frozenset()
_OF_ROWS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")


@dataclass(frozen=True, slots=True)
class Change:
    """Statements that belong together; ``keeps``: the kinds of shapes that must survive them.

    ``only``: the layouts of tables that it concerns, or the publications; empty for all. ``table`` is its table, or
    empty if it concerns every table.
    """

    statements: tuple[str, ...]
    keeps: frozenset[Kind] = _EVERY
    only: frozenset[str] = frozenset()
    table: str = ""

    @property
    def changes_schema(self) -> bool:
        return not all(text.startswith(_OF_ROWS) for text in self.statements)

    @property
    def locks_table(self) -> bool:
        """Whether nobody can read the table until its transaction ends."""
        return self.changes_schema or self.truncates

    @property
    def adds_column(self) -> bool:
        return any(" ADD n" in text for text in self.statements)

    @property
    def truncates(self) -> bool:
        """Whether it replaces the files of the table or of a partition, without changing a column."""
        return any(text.startswith(("TRUNCATE", "VACUUM FULL")) for text in self.statements)

    def suits(self, name: str) -> bool:
        return not self.only or name in self.only

    def on(self, table: str, number: int) -> "Change":
        """The change of one table."""
        statements = tuple(text.format(t=table, k=number) for text in self.statements)
        return replace(self, statements=statements, table=table)


def creation(table: str, layout: Layout, publication: str) -> list[str]:
    """The statements that create a table with a key, a value and one more column."""
    more = ", g int GENERATED ALWAYS AS (id * 2) STORED" if layout == "generated" else ""
    columns = f"CREATE TABLE {table} (id int PRIMARY KEY, v text, w int DEFAULT 1{more})"
    statements = [f"{columns} PARTITION BY RANGE (id)" if layout in _PARTITIONED else columns]
    leaves = [] if layout in _PLAIN else [f"{table}_a", f"{table}_b"]
    if layout in _PARTITIONED:
        sub = " PARTITION BY RANGE (id)" if layout == "tree" else ""
        statements += [
            f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (10)",
            f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES FROM (10) TO (100){sub}",
        ]
    if layout == "tree":
        leaves = [f"{table}_a", f"{table}_b1", f"{table}_b2"]
        statements += [
            f"CREATE TABLE {table}_b1 PARTITION OF {table}_b FOR VALUES FROM (10) TO (20)",
            f"CREATE TABLE {table}_b2 PARTITION OF {table}_b FOR VALUES FROM (20) TO (100)",
        ]
    if layout in {"full", "full halves"}:
        statements += [f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in leaves or [table]]
    if publication.endswith("shapes"):
        statements += [f"ALTER PUBLICATION shapes ADD TABLE {table}"]
    return statements


def removal(table: str) -> str:
    """The statement that drops a table and all that it may have become."""
    names = [table, f"elsewhere.{table}", f"elsewhere.{table}_a"]
    names += [f"{table}_{name}" for name in ("new", "a", "b", "b1", "b2", "c", "c1", "d", "e", "z", "child", "parent")]
    return f"DROP TABLE IF EXISTS {', '.join(names)} CASCADE"


def _each(
    statements: Iterable[str | tuple[str, ...]], keeps: frozenset[Kind] = _EVERY, only: frozenset[str] = frozenset()
) -> tuple[Change, ...]:
    return tuple(Change((each,) if isinstance(each, str) else each, keeps, only) for each in statements)


_MORE: Final = "INSERT INTO {t} (id, v) SELECT i, 'n{k}' FROM generate_series({k}, {k} + 3) i ON CONFLICT DO NOTHING"
FIRST_ROWS: Final = Change(
    ("INSERT INTO {t} (id, v) SELECT i, 'n' FROM generate_series(1, 17, 2) i ON CONFLICT DO NOTHING",)
)
ROWS: Final = (
    *_each(
        (
            _MORE,
            _MORE,
            "UPDATE {t} SET v = 'n' || v || '{k}' WHERE id > {k}",
            "UPDATE {t} SET v = 'o{k}' WHERE id % 3 = 0",
            "UPDATE {t} SET v = NULL WHERE id = {k}",
            "UPDATE {t} SET w = {k} WHERE id < {k}",
            "DELETE FROM {t} WHERE id = {k}",
            "DELETE FROM {t} WHERE id % 4 = 1",
            "TRUNCATE {t}",
            ("TRUNCATE {t}", _MORE),
            "INSERT INTO {t} (id, v, w) VALUES ({k}, 'twice', {k} + 1)",
            "INSERT INTO {t}_new (id, v) VALUES ({k}, 'n') ON CONFLICT DO NOTHING",
            "UPDATE {t}_new SET v = 'n' || v WHERE id > {k}",
        )
    ),
    # A row whose key changes, and whose large value was not sent, ends its shapes.
    *_each(
        (
            "UPDATE {t} SET id = id + 7 WHERE id = {k}",
            "UPDATE {t} SET v = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i) WHERE id = {k}",
            ("INSERT INTO {t}_child (id, v) VALUES ({k} + 50, 'n')",),
        ),
        _NONE,
    ),
    *_each(
        (
            "UPDATE {t}_a SET v = 'n' || v || '{k}'",
            "UPDATE {t}_b SET v = 'p{k}'",
            "INSERT INTO {t}_a (id, v) VALUES ({k} % 10, 'n') ON CONFLICT DO NOTHING",
            "DELETE FROM {t}_b WHERE id % 3 = 1",
            "INSERT INTO {t} (id, v) VALUES (110, 'n'), (210, 'n') ON CONFLICT DO NOTHING",
            "INSERT INTO {t}_c (id, v) VALUES (111, 'o') ON CONFLICT DO NOTHING",
        ),
        only=_PARTITIONED,
    ),
)
"""What changes rows."""

_ROOT: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v text, w int DEFAULT 1)"
SCHEMAS: Final = (
    *_each(
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
    *_each(("ALTER TABLE {t} REPLICA IDENTITY FULL", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT"), _KEYED),
    *_each(
        (
            "ALTER TABLE {t} ADD n{k} int DEFAULT {k}",
            "ALTER TABLE {t} ADD n{k} float DEFAULT random()",
            ("ALTER TABLE {t} ADD n{k} int DEFAULT 5", "ALTER TABLE {t} ALTER n{k} DROP DEFAULT"),
            "ALTER TABLE {t} ALTER w SET DEFAULT {k}",
            "ALTER TABLE {t} ALTER w DROP DEFAULT",
            "ALTER TABLE {t} DROP w",
            ("ALTER TABLE {t} DROP w", "ALTER TABLE {t} ADD w int"),
            "ALTER TABLE {t} RENAME w TO x",
            "ALTER TABLE {t} RENAME x TO w",
            "ALTER TABLE {t} ALTER w TYPE bigint",
            "ALTER TABLE {t} ALTER w TYPE int USING w + 1",
            "ALTER TABLE {t} ALTER w SET NOT NULL",
        ),
        _SELECTING,
    ),
    *_each(
        (
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
        _NONE,
    ),
    *_each(
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
        _NONE,
        only=_PLAIN,
    ),
    *_each(("ALTER TABLE {t} ALTER g DROP EXPRESSION",) * 3, _NONE, frozenset({"generated"})),
    # Without a key, rows can only be deleted by their whole values.
    *_each(
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
                "INSERT INTO {t} (id, v) VALUES (3, 'twice')",
                "DELETE FROM {t} WHERE v = 'twice'",
                "ALTER TABLE {t} ADD PRIMARY KEY (id)",
            ),
        ),
        _NONE,
        frozenset({"full", "full halves"}),
    ),
    # It may be an ordinary column by then.
    *_each(("ALTER TABLE {t} DROP g",), _SELECTING, frozenset({"generated"})),
    *_each(
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
        _KEYED,
        _PARTITIONED,
    ),
    *_each(("CREATE INDEX ON {t}_a (v)", "VACUUM FULL {t}_a"), only=_PARTITIONED),
    *_each(
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
        _NONE,
        _PARTITIONED,
    ),
)
"""What changes a table's schema, with rows in between."""

_SINGLE: Final = frozenset({PUBLICATIONS[1]})
_NOT_ALL: Final = frozenset(PUBLICATIONS[1:])
DELICATE: Final = (
    *_each(
        (
            "ALTER PUBLICATION shapes DROP TABLE {t}",
            (
                "ALTER PUBLICATION shapes DROP TABLE {t}",
                "UPDATE {t} SET v = 'n{k}'",
                "ALTER PUBLICATION shapes ADD TABLE {t}",
            ),
            ("ALTER PUBLICATION shapes DROP TABLE {t}", "ALTER PUBLICATION shapes ADD TABLE {t} WHERE (id < 5)"),
            ("ALTER PUBLICATION shapes DROP TABLE {t}", "ALTER PUBLICATION shapes ADD TABLE {t} (id)"),
        ),
        _NONE,
        _SINGLE,
    ),
    *_each(
        (
            (
                "ALTER PUBLICATION shapes DROP TABLES IN SCHEMA public",
                "UPDATE {t} SET v = 'n{k}'",
                "ALTER PUBLICATION shapes ADD TABLES IN SCHEMA public",
            ),
            "ALTER PUBLICATION shapes ADD TABLES IN SCHEMA public",
        ),
        _NONE,
        _NOT_ALL,
    ),
    *_each(
        (
            (
                "ALTER PUBLICATION shapes SET (publish = 'insert')",
                "UPDATE {t} SET v = 'n{k}'",
                "ALTER PUBLICATION shapes SET (publish = 'insert, update, delete, truncate')",
            ),
            (
                "ALTER PUBLICATION shapes SET (publish_via_partition_root = true)",
                "UPDATE {t} SET v = 'n{k}'",
                "ALTER PUBLICATION shapes SET (publish_via_partition_root = false)",
            ),
        ),
        _NONE,
    ),
)
"""What changes the publication, and so may end the shapes of every table."""
