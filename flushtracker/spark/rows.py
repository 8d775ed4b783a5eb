"""Turns events into the rows that the stateful operator reads. Spark parses them, so no Python runs for each event.

Each fragment becomes one row for its source's chain and one for each of its shapes; each flush notification becomes one
row. A row's key is ``(source, shape_group)``: the shape's group, :data:`CHAIN` for the source's chain, and an empty
source for an unreadable event. An event is readable if :mod:`flushtracker.events.stream_events` can read it, with one
difference: where text is expected, Spark accepts a number or an object as its JSON text.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)
from pyspark.sql import types as T  # noqa: N812 (likewise)

from flushtracker.events.strict_json import MAX_BIGINT, VERSION
from flushtracker.tracking.source_tracker import CHAIN

FRAGMENTS: Final = "fragments"
FLUSHES: Final = "flushes"

# The kinds of row. For a chain link (tx, op) is `follows`, for a shape's part of a fragment its last offset (op -1:
# none), for a flush or a removal the offset notified.
LINK: Final = 0
SHAPE_FRAGMENT: Final = 1
FLUSHED: Final = 2
REMOVED: Final = 3
UNREADABLE_FRAGMENT: Final = 4
UNREADABLE_FLUSH: Final = 5

_CORRUPT: Final = "_corrupt_record"
_JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_OFFSET: Final = "STRUCT<tx_offset: BIGINT, op_offset: BIGINT>"
_FRAGMENT: Final = (
    f"v BIGINT, source STRING, xid BIGINT, lsn BIGINT, follows {_OFFSET}, last_log_offset {_OFFSET}, start BOOLEAN, "
    f"has_begin BOOLEAN, commit STRUCT<commit_timestamp: STRING, end_lsn: BIGINT>, "
    f"shapes ARRAY<STRUCT<shape_id: STRING, last_offset: {_OFFSET}, change_count: BIGINT>>"
)
_FLUSH: Final = f"v BIGINT, source STRING, type STRING, shape_id STRING, offset {_OFFSET}"

# Spark reads the first JSON value of a text and ignores the rest. In an array, before an end mark, anything after the
# event either breaks the JSON or is an extra element.
_END_MARK: Final = -7
_BEFORE: Final = '{"event":['
_AFTER: Final = f',{{"v":{_END_MARK}}}]}}'

ROW_SCHEMA: Final = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("shape_group", T.StringType()),
        T.StructField("kind", T.LongType()),
        T.StructField("shape_id", T.StringType()),
        T.StructField("tx", T.LongType()),
        T.StructField("op", T.LongType()),
        T.StructField("last_tx", T.LongType()),
        T.StructField("last_op", T.LongType()),
        T.StructField("start", T.BooleanType()),
        T.StructField("commit", T.BooleanType()),
        T.StructField("place", T.StringType()),
        T.StructField("value", T.StringType()),
        T.StructField("now_ms", T.LongType()),
    ]
)
"""The operator's input. No number is ever null: pandas would turn the column into floats and round the LSNs."""


def to_rows(raw: DataFrame, shape_groups: int) -> DataFrame:
    """Turn events ``(stream, value, place)`` into rows of :data:`ROW_SCHEMA`.

    ``stream`` is :data:`FRAGMENTS` or :data:`FLUSHES`, ``place`` names where the event was read, for messages.
    """
    is_fragment = F.col("stream") == FRAGMENTS
    fragment, flush = _event(F.col("fragments")), _event(F.col("flushes"))
    is_fragment_readable = is_fragment & _is_one_event(F.col("fragments")) & _is_readable_fragment(fragment)
    is_flush_readable = ~is_fragment & _is_one_event(F.col("flushes")) & _is_readable_flush(flush)
    rows = (
        F.when(is_fragment_readable, _fragment_rows(fragment, shape_groups))
        .when(is_flush_readable, F.array(_flush_row(flush, shape_groups)))
        .otherwise(F.array(_unreadable_row(is_fragment)))
    )
    return (
        raw.withColumn("fragments", F.when(is_fragment, _parsed(_FRAGMENT)))
        .withColumn("flushes", F.when(~is_fragment, _parsed(_FLUSH)))
        # Inside explode Spark would interpret the expression; in a select of its own it compiles it.
        .select(rows.alias("rows"))
        .select(F.explode("rows").alias("row"))
        .select("row.*")
        .withColumn("now_ms", F.unix_millis(F.current_timestamp()))
        .select(*ROW_SCHEMA.fieldNames())
    )


def shape_group_of(shape_id: Column, shape_groups: int) -> Column:
    """A shape's group, which never changes; with 0 ``shape_groups`` every shape is its own group."""
    if shape_groups == 0:
        return shape_id
    return F.pmod(F.xxhash64(shape_id), F.lit(shape_groups)).cast("string")


def _row(**fields: Column) -> Column:
    """A row of all columns but ``now_ms``; those not given are -1, false or, for text, null."""
    empty = {"bigint": F.lit(-1).cast("bigint"), "boolean": F.lit(False), "string": F.lit(None).cast("string")}  # noqa: FBT003 (a literal)
    columns = [field for field in ROW_SCHEMA.fields if field.name != "now_ms"]
    return F.struct(*(fields.get(f.name, empty[f.dataType.simpleString()]).alias(f.name) for f in columns))


def _fragment_rows(fragment: Column, shape_groups: int) -> Column:
    last = fragment["last_log_offset"]
    of_fragment = {
        "source": fragment["source"],
        "last_tx": last["tx_offset"],
        "last_op": last["op_offset"],
        "commit": fragment["commit"].isNotNull(),
    }
    link = _row(
        kind=F.lit(LINK).cast("bigint"),
        shape_group=F.lit(CHAIN),
        tx=fragment["follows"]["tx_offset"],
        op=fragment["follows"]["op_offset"],
        start=fragment["start"],
        place=F.col("place"),
        **of_fragment,
    )

    def shape_row(shape: Column) -> Column:
        return _row(
            kind=F.lit(SHAPE_FRAGMENT).cast("bigint"),
            shape_group=shape_group_of(shape["shape_id"], shape_groups),
            shape_id=shape["shape_id"],
            tx=F.coalesce(shape["last_offset"]["tx_offset"], F.lit(-1)),
            op=F.coalesce(shape["last_offset"]["op_offset"], F.lit(-1)),
            **of_fragment,
        )

    return F.concat(F.array(link), F.transform(fragment["shapes"], shape_row))


def _flush_row(flush: Column, shape_groups: int) -> Column:
    return _row(
        source=flush["source"],
        shape_group=shape_group_of(flush["shape_id"], shape_groups),
        kind=F.when(flush["type"] == "removed", F.lit(REMOVED)).otherwise(F.lit(FLUSHED)).cast("bigint"),
        shape_id=flush["shape_id"],
        tx=flush["offset"]["tx_offset"],
        op=flush["offset"]["op_offset"],
    )


def _unreadable_row(is_fragment: Column) -> Column:
    return _row(
        source=F.lit(""),
        shape_group=F.lit(""),
        kind=F.when(is_fragment, F.lit(UNREADABLE_FRAGMENT)).otherwise(F.lit(UNREADABLE_FLUSH)).cast("bigint"),
        place=F.col("place"),
        value=F.col("value"),
    )


def _is_readable_fragment(fragment: Column) -> Column:
    lsn, follows, last = fragment["lsn"], fragment["follows"], fragment["last_log_offset"]
    commit, shapes = fragment["commit"], fragment["shapes"]
    after_last = F.when(last["op_offset"] == MAX_BIGINT, last["op_offset"]).otherwise(last["op_offset"] + 1)

    def is_readable_shape(shape: Column) -> Column:
        offset = shape["last_offset"]
        in_fragment = (offset["tx_offset"] == lsn) & offset["op_offset"].between(F.lit(0), after_last)
        has_changes = F.when(offset.isNull(), shape["change_count"] == 0).otherwise(shape["change_count"] > 0)
        return _all(_is_text(shape["shape_id"]), has_changes, offset.isNull() | in_fragment)

    return _all(
        F.coalesce(fragment["xid"] >= 0, _has_key("xid") & commit.isNotNull() & (F.size(shapes) == 0)),
        _is_offset(follows, least_tx_offset=-1),
        _is_offset(last),
        last["tx_offset"] == lsn,
        (follows["tx_offset"] < lsn) | ((follows["tx_offset"] == lsn) & (follows["op_offset"] < last["op_offset"])),
        fragment["start"].isNotNull(),
        fragment["has_begin"].isNotNull(),
        F.when(commit.isNull(), _has_key("commit")).otherwise(
            _all(_is_text(commit["commit_timestamp"]), commit["end_lsn"] >= 0)
        ),
        F.forall(shapes, is_readable_shape),
    )


def _is_readable_flush(flush: Column) -> Column:
    return _all(
        flush["type"].isin("flushed", "removed"),
        _is_text(flush["shape_id"]),
        _is_offset(flush["offset"]),
    )


def _parsed(event_schema: str) -> Column:
    """``value`` as an array of the event and the end mark."""
    schema = f"event ARRAY<STRUCT<{event_schema}>>, {_CORRUPT} STRING"
    return F.from_json(F.concat(F.lit(_BEFORE), "value", F.lit(_AFTER)), schema, _JSON_OPTIONS)


def _event(parsed: Column) -> Column:
    """The event alone, null if there is none."""
    return F.get(parsed["event"], F.lit(0))


def _is_one_event(parsed: Column) -> Column:
    """Whether exactly one event, of this version, precedes the end mark."""
    events = parsed["event"]
    has_two = (F.size(events) == 2) & (F.get(events, F.lit(1))["v"] == _END_MARK)
    return _all(parsed[_CORRUPT].isNull(), has_two, _event(parsed)["v"] == VERSION, _is_text(_event(parsed)["source"]))


def _has_key(name: str) -> Column:
    """Whether the event has the key at all: once parsed, an absent key looks like a null."""
    return F.col("value").rlike(rf'"{name}"\s*:')


def _is_text(text: Column) -> Column:
    return text != ""


def _is_offset(offset: Column, least_tx_offset: int = 0) -> Column:
    return (offset["tx_offset"] >= least_tx_offset) & (offset["op_offset"] >= 0)


def _all(*conditions: Column) -> Column:
    """Whether all conditions hold; one that is null, because a value is missing, does not."""
    holds = F.lit(True)  # noqa: FBT003 (a literal)
    for condition in conditions:
        holds = holds & F.coalesce(condition, F.lit(False))  # noqa: FBT003 (a literal)
    return holds
