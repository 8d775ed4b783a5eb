"""Reads ``conf/shapes.yaml``, or a folder of such files: with all checks that need only the files.

A file has the list ``shapes``, or is a single shape.

An error in one entry does not prevent the others from being read. Checks that need the table's columns (does a column
exist, is the old row known) run when the relation is known, and ``where`` is checked when it is compiled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from flushtracker.config.strict_yaml import YamlMapping, YamlText, read_yaml
from flushtracker.config.table_names import TABLE_FORM, parse_table
from flushtracker.config.yaml_tree import read_files
from flushtracker.errors import ConfigError
from flushtracker.shapes.definition import DefinitionPlace, FlushPolicy, ShapeDefinition, ShapeFault, dependency_cycle
from flushtracker.shapes.item_key import sql_name
from flushtracker.wal.changes import TableName
from flushtracker.wal.names import LOG_WRITER, MAX_ID_LENGTH, MAX_WRITER_LENGTH, is_usable_name


@dataclass(frozen=True, slots=True)
class ShapesFile:
    """The content of a shapes file or of a folder of them.

    ``allow_removing`` is how many shapes it may remove if that is more than half. ``definitions`` has the entries
    without a fault; ``ids`` and ``places`` have all entries. All are in the order of the files. An id is ``None`` if it
    cannot be read: the entry may then be that of any shape.
    """

    definitions: tuple[ShapeDefinition, ...]
    allow_removing: int = 0
    faults: tuple[ShapeFault, ...] = ()
    ids: tuple[str | None, ...] = ()
    places: tuple[DefinitionPlace, ...] = ()

    def all_right(self) -> tuple[ShapeDefinition, ...]:
        """The definitions; raises the first fault, if there is one."""
        for fault in self.faults:
            raise fault.error
        return self.definitions


def load_shapes(path: Path) -> tuple[ShapeDefinition, ...]:
    """Load the shapes at ``path``, in the order of the files; raises ``ConfigError`` for the first fault, too."""
    return read_shapes_file(path).all_right()


def read_shapes_file(path: Path) -> ShapesFile:
    """Read a shapes file, or a folder of them; raises as :func:`parse_shapes`, or if a file cannot be read."""
    return parse_shapes(read_files(path))


def parse_shapes(files: Mapping[Path, bytes]) -> ShapesFile:
    """Parse shapes files by their content.

    An error of an entry is a ``ConfigError``, or a ``ShapeError`` if the definition contradicts itself or another one.
    Both name the file, the line and the shape.

    Raises:
        ConfigError: a file as a whole cannot be parsed: nothing is then known of its shapes.
    """
    faults: list[ShapeFault] = []
    entries: list[_Entry | None] = []
    places: list[DefinitionPlace] = []
    allow_removing = 0
    for path, content in files.items():
        root = read_yaml(path, content=content)
        if "storage" in root or "kafka" in root:
            raise ConfigError(f"{path} is a configuration, not a list of shapes")
        items: Sequence[YamlMapping | ConfigError] = [root]
        if "id" not in root:
            root.allow("shapes", "allow_removing")
            allow_removing = max(allow_removing, root.optional_integer("allow_removing", at_least=0) or 0)
            items = root.mappings("shapes")
        entries += [_identified(item, faults) for item in items]
        places += [_place(item if isinstance(item, YamlMapping) else root) for item in items]
    ids = tuple(None if entry is None else entry.id for entry in entries)
    known = [entry for entry in entries if entry is not None]
    by_id = {entry.id: entry for entry in reversed(known)}
    faults += _duplicates(known, by_id)
    shapes: dict[str, ShapeDefinition] = {}
    for entry in known:
        definition, errors = _read(entry.mapping)
        faults += [ShapeFault(entry.id, error) for error in errors]
        if definition is not None:
            shapes[entry.id] = definition
    faults += _dependency_faults(shapes, by_id)
    wrong = {fault.shape_id for fault in faults}
    order = {shape_id: number for number, shape_id in enumerate(ids)}
    faults.sort(key=lambda fault: -1 if fault.shape_id is None else order[fault.shape_id])
    definitions = tuple(shapes[shape_id] for shape_id in ids if shape_id in shapes and shape_id not in wrong)
    return ShapesFile(definitions, allow_removing, tuple(faults), ids, tuple(places))


def typed_table(table: TableName) -> str:
    """The table as typed in a shapes file: the inverse of :func:`parse_table`, quoted for YAML.

    >>> print(typed_table(("public", "users")), typed_table(("public", "ProjectMembers")), typed_table(("It's", "x")))
    public.users 'public."ProjectMembers"' '"It''s".x'
    """
    text = ".".join(map(sql_name, table))
    return text if '"' not in text else "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry with a usable id, which messages use to refer to ``mapping``."""

    id: str
    mapping: YamlMapping


def _identified(item: YamlMapping | ConfigError, faults: list[ShapeFault]) -> _Entry | None:
    """The entry, or ``None`` with a fault added if it has no usable id."""
    try:
        if isinstance(item, ConfigError):
            raise item
        shape_id = item.text("id")
        if len(shape_id.value) > MAX_ID_LENGTH:
            raise item.error("id", f"has {len(shape_id.value)} characters; the limit is {MAX_ID_LENGTH}")
        if not is_usable_name(shape_id.value):
            raise item.error("id", "contains a control character, such as a line break or a tab")
    except ConfigError as error:
        faults.append(ShapeFault(None, error))
        return None
    return _Entry(shape_id.value, item.renamed(f"shape {shape_id.shown}"))


def _duplicates(entries: Sequence[_Entry], first: Mapping[str, _Entry]) -> Iterator[ShapeFault]:
    """Faults of all entries with the same id: it is unknown which one is meant, so none is used."""
    for entry in entries:
        if entry is not first[entry.id]:
            other = first[entry.id].mapping
            place = "on" if other.file == entry.mapping.file else f"in {other.file}"
            fact = f"duplicate id, first {place} line {other.line}; each shape needs its own"
            yield ShapeFault(entry.id, entry.mapping.shape_error("id", fact))


def _read(entry: YamlMapping) -> tuple[ShapeDefinition | None, Sequence[ConfigError]]:
    values: dict[str, Any] = {}
    # Keys that depend on each other find the same errors.
    errors: dict[str, ConfigError] = {}
    for name, read in _READERS.items():
        if errors and name not in entry:
            # A missing key may be the one that was misspelled.
            continue
        try:
            values[name] = read(entry)
        except ConfigError as error:
            errors[str(error)] = error
    if errors:
        return None, tuple(errors.values())
    del values["keys"]
    return ShapeDefinition(**values, at=_place(entry)), ()


def _place(entry: YamlMapping) -> DefinitionPlace:
    return DefinitionPlace(entry.file, entry.line, entry.lines)


def _allow_keys(entry: YamlMapping) -> None:
    entry.allow(
        *("id", "incarnation", "table", "columns", "where", "replica"),
        *("primary_key", "partitions", "depends_on", "flush", "snapshot", "writer"),
    )


def _incarnation(entry: YamlMapping) -> int:
    incarnation = entry.optional_integer("incarnation", at_least=1) or 1
    if incarnation > 1 and entry.optional_boolean("snapshot") is False:
        raise entry.shape_error(
            "incarnation", f"incarnation {incarnation} begins with a snapshot; leave snapshot out, or use a new id"
        )
    return incarnation


def _writer(entry: YamlMapping) -> str:
    writer = entry.optional_text("writer")
    if writer is None:
        return LOG_WRITER
    if len(writer.value) > MAX_WRITER_LENGTH:
        raise entry.error("writer", f"has {len(writer.value)} characters; the limit is {MAX_WRITER_LENGTH}")
    if not is_usable_name(writer.value):
        raise entry.error("writer", "contains a control character, such as a line break or a tab")
    return writer.value


def _where(entry: YamlMapping) -> str | None:
    where = entry.optional_text("where")
    if where is not None and not where.value.strip():
        raise entry.shape_error("where", "where is blank; leave the key out to match every row")
    return None if where is None else where.value


def _columns(entry: YamlMapping) -> tuple[str, ...] | None:
    columns = _names(entry, "columns")
    return None if columns is None else tuple(column.value for column in columns)


def _primary_key(entry: YamlMapping) -> tuple[str, ...] | None:
    names = _names(entry, "primary_key")
    columns = _columns(entry)
    for name in names or ():
        if columns is not None and name.value not in columns:
            raise entry.shape_error("primary_key", f"primary_key names {name}, which is not in columns; add it there")
    return None if names is None else tuple(name.value for name in names)


def _depends_on(entry: YamlMapping) -> tuple[str, ...]:
    return tuple(other.value for other in entry.optional_texts("depends_on") or ())


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
        raise entry.wrong("table", TABLE_FORM) from None


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
            raise entry.shape_error("partitions", f"partitions has {text}, not {TABLE_FORM}") from None
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


_READERS: Final[Mapping[str, Callable[[YamlMapping], object]]] = {
    "keys": _allow_keys,
    "id": lambda entry: entry.text("id").value,
    "table": _table,
    "columns": _columns,
    "where": _where,
    "replica": _replica,
    "primary_key": _primary_key,
    "partitions": _partitions,
    "depends_on": _depends_on,
    "flush": lambda entry: _flush(entry.optional_mapping("flush")),
    "snapshot": lambda entry: entry.optional_boolean("snapshot"),
    "incarnation": _incarnation,
    "writer": _writer,
}
"""How each field of a definition is read; ``keys`` is not a field."""


def _dependency_faults(shapes: Mapping[str, ShapeDefinition], entries: Mapping[str, _Entry]) -> Iterator[ShapeFault]:
    """The shapes that depend on a missing shape or are in a cycle. O(dependencies)."""
    depends_on = {shape_id: set(shape.depends_on) for shape_id, shape in shapes.items() if shape.depends_on}
    for shape_id, others in depends_on.items():
        entry = entries[shape_id].mapping
        for other in entry.optional_texts("depends_on") or ():
            if other.value == shape_id:
                yield ShapeFault(shape_id, entry.shape_error("depends_on", "depends_on names the shape itself"))
                others.discard(shape_id)
            elif other.value not in entries:
                fact = f"depends_on names {other}, which is not a defined shape"
                yield ShapeFault(shape_id, entry.shape_error("depends_on", fact))
    while cycle := dependency_cycle(depends_on):
        path = " → ".join(entries[each].mapping.text("id").shown for each in cycle)
        for shape_id in cycle[:-1]:
            fact = f"depends_on has a cycle: {path}"
            yield ShapeFault(shape_id, entries[shape_id].mapping.shape_error("depends_on", fact))
            del depends_on[shape_id]
