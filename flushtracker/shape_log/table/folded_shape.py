"""The rows of a shape in one version of the shape log, by folding the visible items of its log."""

from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.delta.storage import literal, query_batches
from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import END_ROWS, TRUNCATE, TRUNCATE_PARTITION
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.fold_items import ITEM_COLUMNS, ITEM_ORDER, fold_items
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.truncates import Truncates


def folded_rows(
    table: DeltaTable, shape: FoundShape, check: Callable[[], None] | None = None, keys: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """The rows up to the shape's bound, sorted by key, with the columns of ``fold_items``; only those with ``keys``.

    ``check`` is called after every few rows read; its errors abort the read.

    Raises:
        DecodeError: folding does not give the shape's rows.
        SinkError: temporary files cannot be used.
        DeltaError, OSError: the table cannot be read.
    """
    return fold_items(*shape_items(table, shape, check=check, keys=keys))


def shape_items(
    table: DeltaTable,
    shape: FoundShape,
    after_tx: int | None = None,
    check: Callable[[], None] | None = None,
    keys: Collection[str] | None = None,
) -> tuple[Iterator[pa.Table], Truncates]:
    """The visible items of single rows, in ``ITEM_ORDER``; only those of transactions after ``after_tx``, and of rows
    with ``keys``.

    The truncates among them are known once the first item is returned. Raises as :func:`folded_rows`.
    """
    ends = ", ".join(map(literal, END_ROWS))
    condition = f"{shape.condition} AND {shape.counted(after_tx)} AND operation NOT IN ({ends})"
    if keys is not None:
        of_keys = f"key IN ({', '.join(map(literal, keys))})" if keys else "FALSE"
        condition += f" AND ({of_keys} OR operation IN ({literal(TRUNCATE)}, {literal(TRUNCATE_PARTITION)}))"
    query = f"SELECT {', '.join(ITEM_COLUMNS)} FROM rows WHERE {condition}"  # noqa: S608  no user's values but literals
    truncates = Truncates()
    return sort_tables(_of_rows(query_batches(table, query), truncates, check), ITEM_ORDER), truncates


def _of_rows(
    tables: Iterable[pa.Table], truncates: Truncates, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The items of single rows; truncates are added to ``truncates``."""
    for items in tables:
        if check is not None:
            check()
        is_whole, is_partition = (pc.equal(items["operation"], each) for each in (TRUNCATE, TRUNCATE_PARTITION))
        lacks_key = items.filter(pc.and_not(items["key"].is_null(), is_whole))
        if len(lacks_key):
            raise DecodeError(f"{lacks_key['operation'][0].as_py()} without a key in a shape's log")
        for row in items.filter(pc.or_(is_whole, is_partition)).to_pylist():
            partition = None if row["operation"] == TRUNCATE else row["key"]
            truncates.add((row["tx_offset"], row["op_offset"]), partition)
        yield items.filter(pc.invert(pc.or_(is_whole, is_partition)))
