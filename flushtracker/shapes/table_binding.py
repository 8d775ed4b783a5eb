"""``TableBinding``: a table's description when its shapes were bound to it, and which changes to it end a shape.

The stream shows a table's columns, but not every effect of a schema change on its rows. A new column with a default
fills old rows, ``ALTER TYPE … USING`` rewrites them, and a partition may be attached with rows. None of that is sent.
So capture records a description of each table from the catalog, and compares it with the current one. A shape survives
a difference only if folding its changes still equals its query; otherwise it ends, and the reason says what happened to
which table or column.

Catalog rows carry the transaction that wrote them. A column whose row has another one was altered in between, even if
it looks the same.

``ALTER TABLE`` may rewrite the rows themselves. Then they may have other values, or the table may have been unlogged
for a while and changed without a trace in the stream. Like VACUUM FULL, CLUSTER and TRUNCATE, which are harmless except
to added columns, it replaces the storage file; but it alone also replaces the TOAST table. Without a TOAST table only
TRUNCATE can be recognized: it gives the index the file number next to the table's, where the others use some numbers
for their transient table.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from flushtracker.shapes.catalog_types import reference_type
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.shapes.key_binding import KeyBinding, interrupted_key, unproven_key
from flushtracker.shapes.type_binding import TypeBinding, altered_type
from flushtracker.shapes.where.case_mappings import CaseMappings
from flushtracker.wal.changes import TableName


@dataclass(frozen=True, slots=True)
class ColumnBinding:
    """A column. ``version`` changes when it is altered. ``fills_old_rows``: older rows have its default.

    ``is_deterministic``: texts are equal only if their bytes are. ``altered_before`` is an LSN after its last
    alteration since shapes were first bound to the table; earlier transactions may have it under another name.
    ``case_differences`` are those of its collation, ``None`` for the database's. ``is_bytewise``: the server orders its
    texts by their bytes, in UTF-8, which is by code points.
    """

    number: int
    name: str
    type_oid: int
    type_modifier: int
    version: int
    fills_old_rows: bool = False
    is_deterministic: bool = True
    case_differences: tuple[str, ...] | None = None
    is_bytewise: bool = False
    altered_before: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PartitionBinding:
    """A leaf of a partitioned table.

    ``storage`` changes when the rows are rewritten or truncated, ``attached`` when the partition, or one above it, is
    detached and attached again. ``may_have_rows``: it was attached with rows in it, which were never sent as the
    root's. ``schema_since`` is the transaction that put it into its schema. ``toast`` is the OID of its TOAST table, 0
    without one. ``is_truncated``: ``storage`` comes from a TRUNCATE. ``empty_at`` is the end of the WAL when it was
    found to be empty, if it was a table of its own before.
    """

    oid: int
    table: TableName
    storage: int
    attached: str
    schema_since: int = 0
    is_logged: bool = True
    published_by: tuple[str, ...] = ()
    is_filtered: bool = False
    may_have_rows: bool = field(default=False, compare=False)
    toast: int = 0
    is_truncated: bool = field(default=False, compare=False)
    empty_at: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TableBinding:
    """A table that shapes are defined on.

    ``keys`` are all its keys, the primary key first, then the replica identity's index. ``attributes`` is the number of
    the last column that it ever had, including dropped and generated ones. ``schema_since`` is the transaction that put
    it into its schema. ``published_by`` are the catalog rows that put the table into the publication; ``is_filtered``:
    the publication omits some rows or columns. ``types`` are its columns' user types and the types they are made of.
    ``storage``, ``toast`` and ``is_truncated`` are as in a partition. ``case_differences`` says where the database's
    collation maps case differently from conditions, such as ``lower('I') is 'ı'``.
    """

    oid: int
    table: TableName
    keys: tuple[KeyBinding, ...]
    columns: tuple[ColumnBinding, ...]
    partitions: tuple[PartitionBinding, ...] = ()
    storage: int = 0
    attributes: int = 0
    schema_since: int = 0
    is_partitioned: bool = False
    is_logged: bool = True
    has_children: bool = False
    published_by: tuple[str, ...] = ()
    is_filtered: bool = False
    types: tuple[TypeBinding, ...] = ()
    toast: int = 0
    is_truncated: bool = field(default=False, compare=False)
    case_differences: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the first key; empty without one."""
        return self.keys[0].columns if self.keys else ()


@dataclass(frozen=True, slots=True)
class Filter:
    """The columns that a shape's ``where`` reads, and those whose case it maps."""

    columns: frozenset[str] = frozenset()
    mapped: CaseMappings = frozenset()


NO_FILTER: Final = Filter()
_Member: TypeAlias = TableBinding | PartitionBinding


def reason_to_end(
    used: Collection[str] | None,
    bound: TableBinding,
    now: TableBinding,
    key: Collection[str] | None = None,
    read: Filter = NO_FILTER,
    *,
    can_lose_partitions: bool = False,
) -> str | None:
    """Why a shape that uses these columns (``None``: all) does not survive the change; ``None`` if it does.

    ``key`` is the shape's, ``None`` for the table's. ``read`` is what its ``where`` reads. ``can_lose_partitions``: its
    rows say which partition they are in, so those of a partition that has left the table can be removed.
    """
    return (
        unkept_reason(used, bound, now, key, read)
        or (None if can_lose_partitions else _lost_partition_reason(bound, now))
        or _partition_reason(bound, now)
        or publication_reason(bound, now)
        or _rewrite_reason(bound, now)
    )


def unkept_reason(
    used: Collection[str] | None,
    bound: TableBinding,
    now: TableBinding,
    key: Collection[str] | None = None,
    read: Filter = NO_FILTER,
) -> str | None:
    """Like :func:`reason_to_end`, but ignores partitions and whether the table is published."""
    return (
        _table_reason(bound, now)
        or _key_reason(bound.key if key is None else key, bound, now)
        or _column_reason(used, bound, now)
        or _values_reason(used, bound, now)
        or _collation_reason(read.columns, now)
        or case_reason(read.mapped, now)
    )


def rewritten(bound: TableBinding, now: TableBinding) -> TableName | None:
    """The table or partition whose rows ``ALTER TABLE`` has rewritten, or may have; ``None`` if there is none."""
    for known, member in _with_other_files(bound, now):
        is_copied = known.toast and known.toast == member.toast
        if not is_copied and not (known.toast == member.toast == 0 and member.is_truncated):
            return member.table
    return None


def _with_other_files(bound: TableBinding, now: TableBinding) -> Iterator[tuple[_Member, _Member]]:
    """The table and partitions with a new storage file, as they were and as they are."""
    known_ones: tuple[_Member, ...] = (bound, *bound.partitions)
    members: tuple[_Member, ...] = (now, *now.partitions)
    before = {each.oid: each for each in known_ones}
    for member in members:
        known = before.get(member.oid, member)
        if known.storage != member.storage:
            yield known, member


def _rewrite_reason(bound: TableBinding, now: TableBinding) -> str | None:
    if (table := rewritten(bound, now)) is None:
        return None
    return f"the rows of table {dotted(table)} were rewritten; it may have been unlogged then, or have other values now"


def _table_reason(bound: TableBinding, now: TableBinding) -> str | None:
    table = dotted(bound.table)
    if bound.table != now.table:
        return f"table {table} was renamed to {dotted(now.table)}"
    if bound.schema_since != now.schema_since:
        return f"table {table} was in another schema for a time"
    if not (now.is_logged and all(partition.is_logged for partition in now.partitions)):
        return f"table {table} is unlogged: its changes are not in the WAL"
    if now.has_children:
        return f"table {table} has inheritance children, whose rows its query includes and its changes do not"
    return None


def _key_reason(key: Collection[str], bound: TableBinding, now: TableBinding) -> str | None:
    table = dotted(bound.table)
    before, after = ({column.name: column.version for column in each.columns} for each in (bound, now))
    reason = unproven_key(key, now.keys) or interrupted_key(key, bound.keys, now.keys, (before, after))
    return f"the key of table {table} {reason}" if reason else None


def _column_reason(used: Collection[str] | None, bound: TableBinding, now: TableBinding) -> str | None:
    table, by_number = dotted(bound.table), {column.number: column for column in now.columns}
    is_rewritten = rewritten(bound, now) is not None
    for column in bound.columns:
        if used is None or column.name in used:
            reason = _altered_reason(bound.table, column, by_number.get(column.number), is_rewritten=is_rewritten)
            if reason is not None:
                return reason
    if used is not None:
        return None
    known = {column.number for column in bound.columns}
    # VACUUM FULL and CLUSTER write a new column's values into the rows, and then the catalog no longer has them.
    may_be_filled = any(_with_other_files(bound, now))
    for column in now.columns:
        if column.number in known:
            continue
        if column.number <= bound.attributes:
            return f"column {column.name} of table {table} was generated and not sent, and now is sent"
        if column.fills_old_rows or may_be_filled:
            return f"column {column.name} was added to table {table} with a value for the rows that it already had"
    return None


def _altered_reason(
    table: TableName, column: ColumnBinding, now: ColumnBinding | None, *, is_rewritten: bool
) -> str | None:
    subject = f"column {column.name} of table {dotted(table)}"
    if now is None:
        return f"{subject} was dropped"
    if now.name != column.name:
        return f"{subject} was renamed to {now.name}"
    if now.type_oid != column.type_oid:
        return type_reason(table, column.name, column.type_oid, now.type_oid)
    if now.version != column.version and is_rewritten:
        return f"{subject} was altered, and its rows were rewritten"
    return None


def _values_reason(used: Collection[str] | None, bound: TableBinding, now: TableBinding) -> str | None:
    """Why the texts of values may have changed although their columns are the same."""
    before, after = ({each.oid: each for each in binding.types} for binding in (bound, now))
    for column in bound.columns:
        if used is None or column.name in used:
            reason = altered_type(column.type_oid, before, after)
            if reason is not None:
                return f"{reason} (column {column.name} of table {dotted(bound.table)})"
    for column in now.columns:
        name = reference_type(column.type_oid, after) if used is None or column.name in used else None
        if name is not None:
            return (
                f"column {column.name} of table {dotted(now.table)} has values of type {name}, whose texts change "
                "when what they name is renamed or dropped, and no change is sent for that; leave it out by columns"
            )
    return None


def _collation_reason(filtered: Collection[str], now: TableBinding) -> str | None:
    for column in now.columns:
        if column.name in filtered and not column.is_deterministic:
            return (
                f"where reads column {column.name} of table {dotted(now.table)}, which has a nondeterministic "
                "collation: different texts may be equal"
            )
    return None


def case_reason(mapped: CaseMappings, now: TableBinding) -> str | None:
    """Why the server's collation maps case differently from the conditions here, for the columns in ``mapped``."""
    own = {column.name: column.case_differences for column in now.columns if column.case_differences is not None}
    for case, columns in sorted((case, sorted(columns)) for case, columns in mapped):
        collated = [name for name in columns if name in own]
        for name in collated or [*columns[:1], ""][:1]:
            found = own.get(name, now.case_differences)
            if difference := next((each for each in found if each.startswith(f"{case}(")), None):
                return _unlike(case, difference, name, now, is_own=name in own)
    return None


def _unlike(case: str, difference: str, column: str, now: TableBinding, *, is_own: bool) -> str:
    """Why a shape cannot use ``lower``, ``upper`` or ILIKE, for a column or without one."""
    name, of = ("lower or ILIKE" if case == "lower" else case), "its" if is_own else "the database's"
    subject = f"column {column} of table {dotted(now.table)}" if column else "a literal"
    statement = f'ALTER TABLE {sql_table(now.table)} ALTER {quoted(column)} TYPE text COLLATE "C"'
    remedy = f"give it another collation, as by {statement}, with the type that it has"
    return (
        f"where uses {name} of {subject}, and in {of} collation {difference}, which is not so here; compare the text "
        f"as it is stored{', or ' + remedy if column else ''}"
    )


def _lost_partition_reason(bound: TableBinding, now: TableBinding) -> str | None:
    current = {partition.oid for partition in now.partitions}
    for partition in bound.partitions:
        if partition.oid not in current:
            name, root = dotted(partition.table), dotted(bound.table)
            return f"partition {name} of table {root} was dropped or detached: its rows are no longer the table's"
    return None


def _partition_reason(bound: TableBinding, now: TableBinding) -> str | None:
    root, current = dotted(bound.table), {partition.oid: partition for partition in now.partitions}
    for partition in bound.partitions:
        name, found = dotted(partition.table), current.get(partition.oid)
        if found is None:
            continue
        if found.table != partition.table:
            return f"partition {name} of table {root} was renamed to {dotted(found.table)}"
        if found.attached != partition.attached:
            return f"partition {name} of table {root} was detached and attached again"
        if partition.schema_since != found.schema_since:
            return f"partition {name} of table {root} was in another schema for a time"
    known = {partition.oid for partition in bound.partitions}
    for partition in now.partitions:
        if partition.oid not in known and partition.may_have_rows:
            name = dotted(partition.table)
            return (
                f"partition {name} was attached to table {root} and may have had rows, which were not sent as its own"
            )
    return None


def publication_reason(bound: TableBinding, now: TableBinding) -> str | None:
    """Why changes of the table, or of a partition, were not or are not all published; ``None`` if they are."""
    before = {partition.oid: partition.published_by for partition in bound.partitions}
    before[bound.oid] = bound.published_by
    members: tuple[_Member, ...] = (now, *now.partitions)
    for member in members:
        table = dotted(member.table)
        if member is now and now.is_partitioned:
            continue
        if not member.published_by:
            return f"table {table} is not in the publication"
        if not set(before.get(member.oid, member.published_by)) & set(member.published_by):
            return f"table {table} was not in the publication for a time: its changes were not sent"
    return filter_reason(now)


def filter_reason(now: TableBinding) -> str | None:
    """Why the publication omits some changes of the table or of a partition; ``None`` if it does not."""
    members: tuple[_Member, ...] = (now, *now.partitions)
    for member in members:
        if member.is_filtered:
            table = dotted(member.table)
            return f"the publication has a row filter or a column list for table {table}: it omits changes"
    return None


def type_reason(table: TableName, column: str, before: int, now: int) -> str:
    return f"the type of column {column} of table {dotted(table)} was changed (type OID {before}, now {now})"


def dotted(table: TableName) -> str:
    return ".".join(table)
