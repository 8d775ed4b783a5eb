"""The objects of all events in JSON: one struct for each, with its keys in the order in which they are written.

``msgspec`` reads and writes them (:mod:`flushtracker.events.event_json`), and ``docs/schemas`` is generated from them.
A key without a default is required; one with a default is written only if it has another value. What fields say about
each other is checked in the modules that use a struct.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from flushtracker.wal.changes import Operation, Row, TypeKind
from flushtracker.wal.names import LOG_WRITER, MAX_ID_LENGTH, MAX_WRITER_LENGTH

VERSION: Final = 1
MAX_BIGINT: Final = 2**63 - 1
"""The greatest integer in an event, so that each fits a Spark ``bigint``."""

_CONTROL: Final = r"[\u0000-\u001f\u007f-\u009f\u2028\u2029]"
NAME_PATTERN: Final = rf"^(?![\s\S]*{_CONTROL})"
"""Names have no control characters, such as line breaks."""

Version = Annotated[Literal[1], Meta(extra_json_schema={"type": "integer"})]
Natural = Annotated[int, Meta(ge=0, le=MAX_BIGINT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_BIGINT)]
FromMinusOne = Annotated[int, Meta(ge=-1, le=MAX_BIGINT)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, pattern=NAME_PATTERN)]
CheckedName = Annotated[str, Meta(min_length=1, extra_json_schema={"pattern": NAME_PATTERN})]
"""A name whose characters the reader checks (:func:`flushtracker.events.event_json.require_names`): that is faster."""
BoundedName = Annotated[CheckedName, Meta(max_length=MAX_ID_LENGTH)]
FlushType = Literal["flushed", "removed"]
TableName = tuple[str, str]
Incarnation = Annotated[Positive, Meta(description="Which incarnation of the shape it is; 1 if absent.")]
_OF_WRITER: Final = Meta(
    description="The only program whose notifications count for the shape, as the shapes file has it; "
    '"log", which is flushtracker write, if absent.'
)
Writer = Annotated[Name, _OF_WRITER]
CheckedWriter = Annotated[CheckedName, _OF_WRITER]
RowSchema = Annotated[
    Text,
    Meta(description="A digest of the shape's columns and types, as capture knew its table; absent if there is none."),
]


class Offset(Struct, frozen=True, gc=False):
    """The position of an operation: its transaction's commit LSN, and its number within the transaction."""

    tx_offset: Natural
    op_offset: Natural


class Link(Struct, frozen=True, gc=False):
    """A position, or before all others if ``tx_offset`` is -1."""

    tx_offset: FromMinusOne
    op_offset: Natural


class Commit(Struct, frozen=True, gc=False):
    """The commit of a transaction."""

    commit_timestamp: Text
    end_lsn: Natural


class FragmentShape(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A shape's part of a fragment."""

    shape_id: CheckedName
    writer: Annotated[CheckedName, Meta(description='The shape\'s writer; "log" if absent.')] = LOG_WRITER
    last_offset: Offset | UnsetType | None = UNSET
    change_count: Natural


class Fragment(Struct, kw_only=True, omit_defaults=True):
    """Metadata of one fragment: what was sent to which shape."""

    v: Version
    source: CheckedName
    xid: Natural | None
    lsn: Natural
    follows: Link
    last_log_offset: Offset
    start: bool
    has_begin: bool
    commit: Commit | None
    shapes: list[FragmentShape]


FlushWriter: TypeAlias = Annotated[
    CheckedName, Meta(max_length=MAX_WRITER_LENGTH, description="Who has flushed, or of a removal the shape's writer.")
]


class Flush(Struct):
    """How far a shape is durable, or that it was removed. Anybody's program may send it, so its names are bounded."""

    v: Version
    source: BoundedName
    type: FlushType
    shape_id: BoundedName
    writer: FlushWriter
    offset: Offset


class FlushKey(Struct, array_like=True):
    """The key of a flush notification in Kafka."""

    source: BoundedName
    shape_id: BoundedName
    type: FlushType
    writer: FlushWriter


class Item(Struct, omit_defaults=True):
    """One operation in a shape's log. The columns of rows are PostgreSQL's text or null."""

    offset: Offset
    operation: Operation
    key: Text | None
    value: Row | None = None
    old_value: Row | None = None


class ShapeChanges(Struct, kw_only=True, omit_defaults=True):
    """One fragment's changes for one shape."""

    v: Version
    source: CheckedName
    shape_id: CheckedName
    incarnation: Incarnation = 1
    writer: CheckedWriter = LOG_WRITER
    schema: RowSchema | None = None
    xid: Natural
    follows: Link
    start: bool
    last_log_offset: Offset
    has_begin: bool
    commit: Commit | None
    items: list[Item]


class SnapshotRow(Struct):
    """A row, with the key and the value that an insert of it has."""

    key: Text
    value: Row


class SnapshotEnd(Struct):
    """What a complete snapshot contains: all up to ``lsn`` but the ranges of xids in ``unseen``."""

    rows: Natural
    lsn: Natural
    unseen: tuple[tuple[Natural, Natural], ...]


class Snapshot(Struct, kw_only=True, omit_defaults=True):
    """Some rows of a shape's snapshot, or its end, which is the last event of an attempt."""

    v: Version
    source: Name
    shape_id: Name
    incarnation: Incarnation = 1
    attempt: Positive
    number: Natural
    rows: list[SnapshotRow]
    end: SnapshotEnd | None


class FlushPolicy(Struct):
    """When a shape's writer flushes; null is the writer's default."""

    bytes: Positive | None
    interval_ms: Positive | None
    chunk_bytes: Positive | None


class InnerTable(Struct, omit_defaults=True):
    """A table of a shape's subqueries."""

    table: TableName
    table_oid: Natural
    primary_key: tuple[str, ...]
    keys_have_partitions: bool = False


class Definition(Struct, omit_defaults=True):
    """A shape's definition, with what the catalog has added."""

    table: TableName
    columns: tuple[str, ...] | None
    where: Text | None
    replica: Literal["default", "full"]
    primary_key: tuple[str, ...] | None
    partitions: tuple[TableName, ...]
    depends_on: tuple[str, ...]
    flush: FlushPolicy
    snapshot: bool
    incarnation: Incarnation = 1
    writer: Writer = LOG_WRITER
    keys_have_partitions: bool = False
    inner_tables: tuple[InnerTable, ...] = ()


class EnumLabel(Struct):
    """A label of an enum."""

    oid: Positive
    text: str
    version: Natural


class TypeBinding(Struct):
    """A type that is not built in."""

    oid: Positive
    schema: Text
    name: Text
    kind: TypeKind
    parts: tuple[Positive, ...]
    attributes: Natural
    labels: tuple[EnumLabel, ...]


_COLUMN: Final = {"is_deterministic": "deterministic", "is_bytewise": "bytewise"}


class ColumnBinding(Struct, kw_only=True, omit_defaults=True, rename=_COLUMN):
    """A column of a table."""

    number: Positive
    name: Text
    type_oid: Positive
    type_modifier: FromMinusOne
    version: Natural
    fills_old_rows: bool
    is_deterministic: bool
    altered_before: Natural
    case_differences: tuple[str, ...] | None = None
    is_bytewise: bool = False


class KeyBinding(Struct, rename={"is_primary": "primary"}):
    """A key of a table."""

    oid: Positive
    columns: tuple[str, ...]
    index: Natural
    version: Natural
    storage: Natural
    is_primary: bool


_RENAMED: Final = {
    "is_partitioned": "partitioned",
    "is_logged": "logged",
    "has_children": "children",
    "is_filtered": "filtered",
}


class TableBinding(Struct, kw_only=True, omit_defaults=True, rename=_RENAMED):
    """A table as it was when its shapes' logs were last known to match it. Its partitions have entries of their own."""

    oid: Positive
    table: TableName
    storage: Natural
    attributes: Natural
    schema_since: Natural
    is_partitioned: bool
    is_logged: bool
    has_children: bool
    is_filtered: bool
    published_by: tuple[str, ...]
    columns: tuple[ColumnBinding, ...]
    types: tuple[TypeBinding, ...]
    keys: tuple[KeyBinding, ...]
    case_differences: tuple[str, ...] = ()
    toast: Natural


class PartitionBinding(Struct, rename=_RENAMED):
    """A partition as it was likewise."""

    oid: Positive
    table: TableName
    storage: Natural
    attached: str
    schema_since: Natural
    is_logged: bool
    is_filtered: bool
    published_by: tuple[str, ...]
    toast: Natural


class Shape(Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="shape"):
    """A shape with its definition, its start and its end."""

    v: Version
    source: Name
    shape_id: Name
    definition: Definition
    table_oid: Natural
    starts_after: Link
    removed_at: Offset | None
    ended_because: Text | None
    starts_visible: bool
    evicted_at_ms: Natural | None = None
    earlier_writers: tuple[Name, ...] = ()


class RemovedShape(Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="removed_shape"):
    """What is kept of a removed shape."""

    v: Version
    source: Name
    shape_id: Name
    incarnation: Incarnation = 1
    writer: Writer = LOG_WRITER
    removed_at: Offset
    ended_because: Text | None
    evicted_at_ms: Natural | None = None


class Table(Struct, tag_field="type", tag="table"):
    """A table of the source's shapes."""

    v: Version
    source: Name
    table_oid: Positive
    binding: TableBinding


class Partition(Struct, omit_defaults=True, tag_field="type", tag="partition"):
    """A partition that a table has or had."""

    v: Version
    source: Name
    table_oid: Positive
    binding: PartitionBinding
    joined: Natural | None
    left_at: Natural | None
    lost_with: Natural | None = None
    empty_at: Natural | None = None


class Switch(Struct):
    """Where a timeline ended."""

    timeline: Positive
    lsn: Natural


class History(Struct):
    """A timeline of a server, and where those before it ended."""

    timeline: Positive
    switches: tuple[Switch, ...]


class Ends(Struct):
    """The Kafka offsets of the ends of two streams' partitions."""

    fragments: tuple[Natural, ...]
    shape_changes: tuple[Natural, ...]


class Source(Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="source"):
    """The start of a source, and how it is captured."""

    v: Version
    source: Name
    starts_after: Link
    publication: Text
    routing: Annotated[Positive, Meta(description="The version of the rules by which the source is routed.")]
    history: History | None = None
    holder: Text | None = None
    published_lsn: FromMinusOne | None = None
    ends: Ends | None = None
    claimed: History | None = None
    system_id: Name | None = None
    earlier_timelines: Natural = 0
    sealed: Name | None = None


Entry = Shape | RemovedShape | Table | Partition | Source
"""An entry of the registry, by its ``type``."""
