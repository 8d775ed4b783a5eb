"""Updates a binding after pg_upgrade, which keeps the OIDs of tables, types and labels, but no xids.

A binding knows by the xids of catalog rows whether a column, a label or a link was altered. pg_upgrade rewrites these
rows with new xids and gives constraints and publications new OIDs. So after an upgrade a binding gets the new
identities of the rows that pg_upgrade wrote. For a row written later, the binding keeps the old identity, and the usual
comparison with the catalog finds that it was altered. Nothing else in the binding changes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding

IsCarried: TypeAlias = Callable[[int], bool]
"""Whether pg_upgrade wrote a catalog row, given the 32-bit xid that wrote it."""


def carried_table(
    before: TableBinding, now: TableBinding, is_carried: IsCarried, *, is_published_as_before: bool
) -> TableBinding:
    """``before`` with the identities that pg_upgrade has given to its rows.

    ``is_published_as_before``: all rows that publish the table itself were written by pg_upgrade.
    """
    since = _carried(before.schema_since, now.schema_since, is_carried)
    return replace(
        before,
        columns=_carried_columns(before.columns, now.columns, is_carried),
        schema_since=since,
        published_by=now.published_by if is_published_as_before else before.published_by,
        types=_carried_types(before.types, now.types, is_carried),
        keys=_carried_keys(before.keys, now.keys, is_carried),
    )


def carried_partition(
    before: PartitionBinding, now: PartitionBinding | None, is_carried: IsCarried, *, is_published_as_before: bool
) -> PartitionBinding:
    """:func:`carried_table` for a partition; one that the table no longer has is unchanged."""
    if now is None:
        return before
    # Each link has its xid after a slash.
    links = [int(xid) for xid in now.attached.split("/")[1:]]
    is_attached = now.attached.count("/") == before.attached.count("/") and all(map(is_carried, links))
    return replace(
        before,
        attached=now.attached if is_attached else before.attached,
        schema_since=_carried(before.schema_since, now.schema_since, is_carried),
        published_by=now.published_by if is_published_as_before else before.published_by,
    )


def _carried(before: int, now: int, is_carried: IsCarried) -> int:
    return now if is_carried(now) else before


def _carried_columns(
    before: Iterable[ColumnBinding], now: Iterable[ColumnBinding], is_carried: IsCarried
) -> tuple[ColumnBinding, ...]:
    versions = {column.number: column.version for column in now if is_carried(column.version)}
    return tuple(replace(column, version=versions.get(column.number, column.version)) for column in before)


def _carried_keys(
    before: Iterable[KeyBinding], now: Iterable[KeyBinding], is_carried: IsCarried
) -> tuple[KeyBinding, ...]:
    """Keys are the same if they are of the same index, whose OID is kept."""
    found: Mapping[int, KeyBinding] = {key.index: key for key in now if is_carried(key.version)}
    return tuple(
        replace(key, oid=found[key.index].oid, version=found[key.index].version) if key.index in found else key
        for key in before
    )


def _carried_types(
    before: Iterable[TypeBinding], now: Iterable[TypeBinding], is_carried: IsCarried
) -> tuple[TypeBinding, ...]:
    labels = {label.oid: label for binding in now for label in binding.labels if is_carried(label.version)}

    def carried(label: EnumLabel) -> EnumLabel:
        return replace(label, version=labels[label.oid].version) if label.oid in labels else label

    return tuple(replace(each, labels=tuple(map(carried, each.labels))) for each in before)
