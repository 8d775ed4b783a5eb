"""Reads ``conf/shapes.yaml``: the list of shapes, with all checks that need only the file.

Checks that need the table's columns (does a column exist, is the old row known) run when the relation is known, and
``where`` is checked when it is compiled.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flushtracker.config.file_kinds import SHAPES, read_kind
from flushtracker.config.strict_yaml import YamlMapping, YamlText
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.changes import TableName
from flushtracker.wal.names import is_usable_name

MAX_ID_LENGTH: Final = 200

_PART: Final = r'"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*'
_TABLE: Final = re.compile(rf"(?P<schema>{_PART})\.(?P<name>{_PART})")
_TABLE_FORM: Final = 'of the form schema.name, with double quotes where PostgreSQL needs them: "My Schema".name'

# PostgreSQL folds only ASCII letters in multibyte encodings.
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class ShapesFile:
    """The content of a shapes file; ``allow_removing``: how many shapes it may remove if that is more than half."""

    definitions: tuple[ShapeDefinition, ...]
    allow_removing: int = 0


def load_shapes(path: Path) -> tuple[ShapeDefinition, ...]:
    """Load the shapes of a file, in file order; raises ``ConfigError``, as :func:`read_shapes` does."""
    return read_shapes(path).definitions


def read_shapes(path: Path) -> ShapesFile:
    """Read a shapes file; the definitions are in file order.

    Raises:
        ConfigError: the file is malformed; a ``ShapeError`` if a definition contradicts itself or another one. Both
            name the file, the line and the shape.
    """
    root = read_kind(path, SHAPES)
    root.allow("shapes", "allow_removing")
    entries = _entries_by_id(root.mappings("shapes"))
    shapes = tuple(_shape(entry) for entry in entries.values())
    _check_dependencies(shapes, entries)
    return ShapesFile(shapes, root.integer("allow_removing", default=0, at_least=0))


def parse_table(text: str) -> TableName:
    """Parse ``schema.name``; each part is folded to lower case unless it is in double quotes.

    >>> parse_table('Public."Line/No"')
    ('public', 'Line/No')

    Raises:
        ValueError: the text does not have exactly two parts, or a part needs quotes.
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        raise ValueError(f"table {text!r} is not {_TABLE_FORM}")
    return _unquoted(found["schema"]), _unquoted(found["name"])


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_FOLD)


def _entries_by_id(entries: Sequence[YamlMapping]) -> dict[str, YamlMapping]:
    """The entries by id; from here on, messages name each entry by its id."""
    by_id: dict[str, YamlMapping] = {}
    for entry in entries:
        shape_id = entry.text("id")
        if len(shape_id.value) > MAX_ID_LENGTH:
            raise entry.error("id", f"has {len(shape_id.value)} characters; the limit is {MAX_ID_LENGTH}")
        if not is_usable_name(shape_id.value):
            raise entry.error("id", "contains a control character, such as a line break or a tab")
        renamed = entry.renamed(f"shape {shape_id.shown}")
        if shape_id.value in by_id:
            first = by_id[shape_id.value].line
            raise renamed.shape_error("id", f"duplicate id, first on line {first}; each shape needs its own")
        by_id[shape_id.value] = renamed
    return by_id


def _shape(entry: YamlMapping) -> ShapeDefinition:
    entry.allow(
        *("id", "table", "columns", "where", "replica", "primary_key", "partitions", "depends_on", "flush", "snapshot")
    )
    where = entry.optional_text("where")
    if where is not None and not where.value.strip():
        raise entry.shape_error("where", "where is blank; leave the key out to match every row")
    columns = _names(entry, "columns")
    primary_key = _names(entry, "primary_key")
    if columns is not None:
        for name in primary_key or ():
            if name.value not in {column.value for column in columns}:
                raise entry.shape_error(
                    "primary_key", f"primary_key names {name}, which is not in columns; add it there"
                )
    return ShapeDefinition(
        id=entry.text("id").value,
        table=_table(entry),
        columns=None if columns is None else tuple(column.value for column in columns),
        where=None if where is None else where.value,
        replica=_replica(entry),
        primary_key=None if primary_key is None else tuple(name.value for name in primary_key),
        partitions=_partitions(entry),
        depends_on=tuple(other.value for other in entry.optional_texts("depends_on") or ()),
        flush=_flush(entry.optional_mapping("flush")),
        snapshot=entry.optional_boolean("snapshot"),
        where_at="" if where is None else entry.place("where"),
    )


def _names(entry: YamlMapping, key: str) -> tuple[YamlText, ...] | None:
    names = entry.optional_texts(key)
    if names == ():
        raise entry.shape_error(key, f"{key} is an empty list; leave the key out for the default")
    return names


def _table(entry: YamlMapping) -> TableName:
    try:
        return parse_table(entry.text("table").value)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise entry.wrong("table", _TABLE_FORM) from None


def _replica(entry: YamlMapping) -> Literal["default", "full"]:
    replica = entry.optional_text("replica")
    if replica is None or replica.value == "default":
        return "default"
    if replica.value == "full":
        return "full"
    raise entry.wrong("replica", "default or full")


def _partitions(entry: YamlMapping) -> tuple[TableName, ...]:
    table = _table(entry)
    partitions: list[TableName] = []
    for text in entry.optional_texts("partitions") or ():
        try:
            partition = parse_table(text.value)
        except ValueError:
            raise entry.shape_error("partitions", f"partitions has {text}, not {_TABLE_FORM}") from None
        if partition == table:
            raise entry.shape_error("partitions", f"partitions names {text}, which is the shape's own table")
        if partition in partitions:
            raise entry.shape_error("partitions", f"partitions names {text}, which is already listed")
        partitions.append(partition)
    return tuple(partitions)


def _flush(flush: YamlMapping | None) -> FlushPolicy:
    if flush is None:
        return FlushPolicy()
    flush.allow("bytes", "interval", "chunk_bytes")
    return FlushPolicy(
        bytes=flush.optional_integer("bytes", at_least=1),
        interval_ms=flush.optional_duration_ms("interval"),
        chunk_bytes=flush.optional_integer("chunk_bytes", at_least=1),
    )


def _check_dependencies(shapes: Sequence[ShapeDefinition], entries: dict[str, YamlMapping]) -> None:
    """Check that every dependency is a shape in the file and that there is no cycle."""
    depends_on = {shape.id: shape.depends_on for shape in shapes}
    for shape_id, entry in entries.items():
        for other in entry.optional_texts("depends_on") or ():
            if other.value == shape_id:
                raise entry.shape_error("depends_on", "depends_on names the shape itself")
            if other.value not in entries:
                raise entry.shape_error("depends_on", f"depends_on names {other}, which is not a shape in this file")
    cycle = _find_cycle(depends_on)
    if cycle:
        path = " → ".join(entries[shape_id].text("id").shown for shape_id in cycle)
        raise entries[cycle[0]].shape_error("depends_on", f"depends_on has a cycle: {path}")


def _find_cycle(depends_on: dict[str, tuple[str, ...]]) -> list[str]:
    """A path that ends where it starts, or an empty list. Iterative, because a file may chain thousands of shapes."""
    done: set[str] = set()
    for start in depends_on:
        path: list[str] = []
        on_path: set[str] = set()
        pending = [(start, False)]
        while pending:
            shape_id, leaving = pending.pop()
            if leaving:
                on_path.remove(path.pop())
                done.add(shape_id)
            elif shape_id in on_path:
                return [*path[path.index(shape_id) :], shape_id]
            elif shape_id not in done:
                path.append(shape_id)
                on_path.add(shape_id)
                pending.append((shape_id, True))
                pending.extend((other, False) for other in depends_on[shape_id])
    return []
