"""Checks that a relation has what a definition needs: columns, columns of old rows, and a UTF-8-like encoding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flushtracker.errors import IdentityError, ShapeError, did_you_mean, listed
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.where import Where
from flushtracker.shapes.where.column_types import type_of
from flushtracker.shapes.where.server_encoding import AMBIGUOUS, may_have_other_letters
from flushtracker.wal.changes import Relation, TableName

_READS: Final = {
    "where": ("where reads", "filter on those only"),
    "primary_key": ("primary_key names", "name those only"),
}
_STATED: Final = "flushtracker check --connection prints the statement that makes it enough"


def identity_columns(relation: Relation) -> tuple[str, ...]:
    """The columns that every old row contains; empty if the server sends no old rows."""
    if relation.replica_identity == "full":
        return tuple(column.name for column in relation.columns)
    return relation.key_columns


@dataclass(frozen=True, slots=True)
class IdentityLack:
    """``columns`` that a definition's ``key`` reads of old rows, which contain only those of ``identity``."""

    key: Literal["where", "primary_key"]
    columns: tuple[str, ...]
    identity: tuple[str, ...]

    def error(self, definition: ShapeDefinition, tables: Sequence[TableName], remedy: str = _STATED) -> IdentityError:
        """The error about a shape on ``tables``: its own, or its partitions."""
        verb, otherwise = _READS[self.key]
        names = [".".join(table) for table in tables]
        subject, rows = names[0], "old rows"
        if len(names) > 1:
            subject, rows = ".".join(definition.table), f"old rows of {listed(names)}"
        fact = f"{verb} {', '.join(self.columns)}, but {rows} contain only {', '.join(self.identity)}"
        return IdentityError(f"{definition.subject(self.key)} on {subject}: {fact}; {remedy}, or {otherwise}")


def identity_lacks(
    definition: ShapeDefinition, filtered: Iterable[str], relation: Relation
) -> tuple[IdentityLack, ...]:
    """The columns missing from old rows, without which a row's key or its membership in the shape is unknown.

    ``filtered`` are the columns that ``where`` reads. A table without a replica identity lacks nothing: the server
    refuses its updates and deletes.
    """
    identity = identity_columns(relation)
    reads: tuple[tuple[Literal["where", "primary_key"], Sequence[str]], ...] = (
        ("where", sorted(filtered)),
        ("primary_key", definition.primary_key or ()),
    )
    return tuple(
        IdentityLack(key, missing, identity)
        for key, columns in reads
        if identity and (missing := tuple(name for name in columns if name not in identity))
    )


def column_faults(definition: ShapeDefinition, relation: Relation) -> list[ShapeError]:
    """An error for each key whose columns ``relation`` does not have."""
    names = [column.name for column in relation.columns]
    faults = []
    for key, columns in (("columns", definition.columns), ("primary_key", definition.primary_key)):
        missing = [name for name in columns or () if name not in names]
        if missing:
            hints = dict.fromkeys(did_you_mean(name, names) for name in missing)
            subject = f"{definition.subject(key)} on {'.'.join(relation.table)}"
            known = f"which the table lacks; it has {', '.join(names)}{''.join(hints)}"
            faults.append(ShapeError(f"{subject}: {key} names {', '.join(missing)}, {known}"))
    return faults


def encoding_faults(
    definition: ShapeDefinition, where: Where | None, relation: Relation, encoding: str
) -> list[ShapeError]:
    """Errors for values or conditions that differ between the database's encoding and UTF-8; ``relation`` has all
    columns.
    """
    table = ".".join(relation.table)
    reasons = [] if where is None else where.encoding_reasons(relation, encoding)
    faults = [ShapeError(f"{definition.subject('where')}: {table}: where {reason}") for reason in reasons]
    types = {column.name: type_of(column) for column in relation.columns}
    compared = [name for name in sorted(definition.compared or ()) if name in types]
    merged = [name for name in compared if may_have_other_letters(types[name])]
    if encoding in AMBIGUOUS and merged:
        fact = f"where compares column {', '.join(merged)} in subqueries, of which different texts of {encoding} may be"
        advice = "one in UTF-8; compare numbers, times, booleans or uuids, or convert the database to UTF8"
        faults.append(ShapeError(f"{definition.subject('where')}: {table}: {fact} {advice}"))
    unclear = [name for name in definition.primary_key or () if may_have_other_letters(types[name])]
    if encoding in AMBIGUOUS and unclear:
        fact = f"the key has column {', '.join(unclear)}, of which different texts of {encoding} may be one in UTF-8"
        advice = "use a key of numbers, times, booleans or uuids, or convert the database to UTF8"
        faults.append(ShapeError(f"{definition.subject('primary_key')}: {table}: {fact}; {advice}"))
    return faults
