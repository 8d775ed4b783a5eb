"""What a random history is made of: tables ``{t}`` in several layouts, and changes of their rows.

``{k}`` is a small number, different each time. A change says which kinds of shapes must survive it; that a shape ends
without such a change is a failure, too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Layout: TypeAlias = Literal[
    "plain",
    "full",
    "generated",
    "virtual",
    "collated",
    "names",
    "deferrable",
    "keyless",
    "partial",
    "nullable",
    "expression",
    "indexed",
    "halves",
    "full halves",
    "tree",
    "keyless halves",
    "bare",
]
Kind: TypeAlias = Literal["all", "listed", "low", "text", "chosen", "leaf", "branch"]
KINDS: Final[tuple[Kind, ...]] = ("all", "listed", "low", "text", "chosen", "leaf", "branch")
LISTED: Final = ("id", "v")
WHERE: Final[dict[Kind, str]] = {"low": "id < 12", "text": "v = 'n'"}
PART: Final[dict[Kind, str]] = {"leaf": "_a", "branch": "_b"}
"""The kinds of shapes that are not on the table itself, but on a partition; on a leaf, or maybe on a sub-root."""
_ORDINARY: Final[frozenset[Layout]] = frozenset({"plain", "full", "generated", "virtual", "collated", "names"})
WITHOUT_KEY: Final[frozenset[Layout]] = frozenset({"keyless", "partial", "nullable", "expression"})
PLAIN: Final[frozenset[Layout]] = _ORDINARY | WITHOUT_KEY | {"deferrable", "indexed"}
PARTITIONED: Final[frozenset[Layout]] = frozenset({"halves", "full halves", "tree", "keyless halves", "bare"})
_FULL: Final = WITHOUT_KEY | {"full", "full halves", "collated", "deferrable", "keyless halves"}
_SINCE: Final[dict[Layout, int]] = {"virtual": 18}
PUBLICATIONS: Final = (
    "CREATE PUBLICATION shapes FOR ALL TABLES",
    "CREATE PUBLICATION shapes",
    "CREATE PUBLICATION shapes; COMMENT ON PUBLICATION shapes IS 'managed by flushtracker capture for slot shapes'",
    "CREATE PUBLICATION shapes FOR TABLES IN SCHEMA public",
)
MANAGED: Final = PUBLICATIONS[2]
"""Capture adds the tables of shapes to it, and takes them out."""
EVERY: Final[frozenset[Kind]] = frozenset(KINDS)
KEYED: Final[frozenset[Kind]] = frozenset({"all", "listed", "low", "chosen"})
SELECTING: Final[frozenset[Kind]] = frozenset({"listed", "text"})
NONE: Final[frozenset[Kind]] = frozenset()


_REORDERS: Final = re.compile(r"ALTER TABLE \S+ (DROP \w+|RENAME \w+ TO \w+)")
_OF_ROWS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")


@dataclass(frozen=True, slots=True)
class Change:
    """Statements that belong together; ``keeps``: the kinds of shapes that must survive them.

    ``only``: the layouts of tables that it concerns, or the publications; empty for all. ``since``: the first version
    of PostgreSQL that has it. ``table`` is its table, or empty if it concerns every table; ``template`` are the
    statements for any table.
    """

    statements: tuple[str, ...]
    keeps: frozenset[Kind] = EVERY
    only: frozenset[str] = frozenset()
    since: int = 0
    table: str = ""
    template: str = ""

    @property
    def changes_schema(self) -> bool:
        return not all(text.startswith(_OF_ROWS) for text in self.statements)

    @property
    def locks_table(self) -> bool:
        """Whether nobody can read the table until its transaction ends.

        Of these, a history counts the shapes that survive.
        """
        return self.changes_schema or self.truncates

    @property
    def adds_column(self) -> bool:
        return any(" ADD n" in text for text in self.statements)

    @property
    def alters_column(self) -> bool:
        """Whether it writes a column's row in the catalog, without a change of its values."""
        return any(" SET STATISTICS" in text for text in self.statements)

    @property
    def reorders_columns(self) -> bool:
        """Whether the names of the columns, in their order, are others than before, apart from new ones at the end."""
        return any(map(_REORDERS.fullmatch, self.statements))

    @property
    def truncates(self) -> bool:
        """Whether it replaces the files of the table or of a partition, without changing a column."""
        return any(text.startswith(("TRUNCATE", "VACUUM FULL", "CLUSTER")) for text in self.statements)

    def suits(self, name: str, version: int) -> bool:
        return (not self.only or name in self.only) and version >= self.since

    def on(self, table: str, number: int) -> "Change":
        """The change of one table."""
        statements = tuple(text.format(t=table, k=number) for text in self.statements)
        return replace(self, statements=statements, table=table, template="; ".join(self.statements))


def layouts(version: int) -> list[Layout]:
    """The layouts that a version has; partitions more often, as they have more changes of their own."""
    found = [layout for layout in sorted(PLAIN) if _SINCE.get(layout, 0) <= version]
    found += [*sorted(PARTITIONED), "plain", "full", "halves", "halves", "full halves", "tree"]
    return found


def publications(version: int) -> tuple[str, ...]:
    """The publications that a version has."""
    return PUBLICATIONS if version >= 15 else PUBLICATIONS[:3]


def creation(table: str, layout: Layout, publication: str) -> list[str]:
    """The statements that create a table, mostly with a key, a value and two more columns."""
    statements = [_created(table, layout)]
    if layout in PARTITIONED and layout != "bare":
        sub = " PARTITION BY RANGE (id)" if layout == "tree" else ""
        statements += [
            f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (10)",
            f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES FROM (10) TO (100){sub}",
        ]
    leaves = [f"{table}_a", f"{table}_b"] if layout in {"full halves", "keyless halves"} else []
    if layout == "tree":
        statements += [
            f"CREATE TABLE {table}_b1 PARTITION OF {table}_b FOR VALUES FROM (10) TO (20)",
            f"CREATE TABLE {table}_b2 PARTITION OF {table}_b FOR VALUES FROM (20) TO (100)",
        ]
    if layout == "keyless halves":
        statements += [f"ALTER TABLE {leaf} ADD PRIMARY KEY (id)" for leaf in leaves]
    statements += [statement.format(t=table) for statement in _INDEXES.get(layout, ())]
    if layout in _FULL:
        statements += [f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in [table, *leaves]]
    if publication.endswith("shapes"):
        statements += [f"ALTER PUBLICATION shapes ADD TABLE {table}"]
    return statements


_INDEXES: Final[dict[Layout, tuple[str, ...]]] = {
    "partial": ("CREATE UNIQUE INDEX {t}_i ON {t} (id) WHERE id > 5",),
    "nullable": ("CREATE UNIQUE INDEX {t}_i ON {t} (id)",),
    "expression": ("CREATE UNIQUE INDEX {t}_i ON {t} (abs(id), (v IS NULL), md5(v))",),
    "indexed": ("CREATE UNIQUE INDEX {t}_i ON {t} (id)", "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_i"),
    "names": ("CREATE TABLE {t}_named (id int)",),
}


def _created(table: str, layout: Layout) -> str:
    key = "PRIMARY KEY"
    if layout in WITHOUT_KEY | {"indexed", "keyless halves"}:
        key = "" if layout == "nullable" else "NOT NULL"
    elif layout == "deferrable":
        key = "PRIMARY KEY DEFERRABLE"
    text = "text COLLATE elsewhere.caseless" if layout == "collated" else "text"
    more = {
        "generated": ", g int GENERATED ALWAYS AS (w * 2) STORED",
        "virtual": ", g int GENERATED ALWAYS AS (w * 2) VIRTUAL",
        "names": ", r regclass DEFAULT 'pg_catalog.pg_class'",
    }.get(layout, "")
    by = " PARTITION BY RANGE (id)" if layout in PARTITIONED else ""
    return f"CREATE TABLE {table} (id int {key}, v {text}, w int DEFAULT 1, u text DEFAULT 'u'{more}){by}"


def removal(table: str) -> str:
    """The statement that drops a table and all that it may have become."""
    parts = ("a", "b", "b1", "b2", "c", "c1", "d", "e", "z", "new", "child", "parent", "named", "named2")
    names = [table, f"elsewhere.{table}", f"elsewhere.{table}_a", *(f"{table}_{part}" for part in parts)]
    return f"DROP TABLE IF EXISTS {', '.join(names)} CASCADE"


def each(
    statements: Iterable[str | tuple[str, ...]],
    keeps: frozenset[Kind] = EVERY,
    only: Iterable[str] = (),
    *,
    since: int = 0,
) -> tuple[Change, ...]:
    """A change for each of the statements, or of the statements that belong together."""
    return tuple(
        Change((one,) if isinstance(one, str) else one, keeps, frozenset(only), since=since) for one in statements
    )


_MORE: Final = (
    "INSERT INTO {t} (id, v) SELECT i, 'n{k}' FROM generate_series({k}, {k} + 3) i "
    "WHERE NOT EXISTS (SELECT FROM {t} o WHERE o.id = i)"
)
_OUTSIDE: Final = (
    "INSERT INTO {t} (id, v) SELECT i, 'n' FROM unnest(ARRAY[110, 210]) i "
    "WHERE NOT EXISTS (SELECT FROM {t} o WHERE o.id = i)"
)
_FIRST: Final = (
    "INSERT INTO {t} (id, v) SELECT i, 'n' FROM generate_series(1, 17, 2) i "
    "WHERE NOT EXISTS (SELECT FROM {t} o WHERE o.id = i)"
)
FIRST_ROWS: Final = Change((_FIRST,))
ROWS: Final = (
    *each(
        (
            _MORE,
            _MORE,
            "UPDATE {t} SET v = 'n' || v || '{k}' WHERE id > {k}",
            "UPDATE {t} SET v = 'o{k}' WHERE id % 3 = 0",
            "UPDATE {t} SET v = 'n' WHERE id % 3 = 1",
            "UPDATE {t} SET v = NULL WHERE id = {k}",
            "UPDATE {t} SET w = {k} WHERE id < {k}",
            "UPDATE {t} SET u = 'u' || {k} WHERE id < {k}",
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
    *each(
        (
            "UPDATE {t} SET id = id + 7 WHERE id = {k}",
            "UPDATE {t} SET v = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i) WHERE id = {k}",
            ("INSERT INTO {t}_child (id, v) VALUES ({k} + 50, 'n')",),
        ),
        NONE,
    ),
    *each(
        (
            "UPDATE {t}_a SET v = 'n' || v || '{k}'",
            "UPDATE {t}_b SET v = 'p{k}'",
            "INSERT INTO {t}_a (id, v) VALUES ({k} % 10, 'n') ON CONFLICT DO NOTHING",
            "DELETE FROM {t}_b WHERE id % 3 = 1",
            _OUTSIDE,
            "INSERT INTO {t}_c (id, v) VALUES (111, 'o') ON CONFLICT DO NOTHING",
        ),
        only=PARTITIONED,
    ),
    *each(("UPDATE {t} SET v = 'N' WHERE id % 2 = 1", "UPDATE {t} SET v = upper(v)"), only=("collated",)),
    *each(("UPDATE {t} SET r = '{t}_named'", "UPDATE {t} SET r = '{t}'"), only=("names",)),
    *each(
        (
            "UPDATE {t} SET id = id + 1",
            "UPDATE {t} SET id = 20 - id",
            "UPDATE {t} SET id = CASE WHEN id % 2 = 0 THEN id - 1 ELSE id + 1 END",
        ),
        NONE,
        ("deferrable",),
    ),
    *each(
        (
            "INSERT INTO {t} SELECT * FROM {t} WHERE id < {k}",
            "INSERT INTO {t} (id, v) VALUES (2, 'n'), (2, 'n')",
            "DELETE FROM {t} WHERE ctid = (SELECT min(ctid) FROM {t})",
            "UPDATE {t} SET w = w + 1 WHERE ctid = (SELECT min(ctid) FROM {t})",
            "INSERT INTO {t} (id, v) VALUES (NULL, 'n'), (NULL, 'n'), (NULL, 'o')",
            "UPDATE {t} SET w = 2 WHERE id IS NULL",
        ),
        NONE,
        WITHOUT_KEY,
    ),
)
"""What changes rows."""
