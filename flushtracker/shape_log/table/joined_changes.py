"""``joined_changes``: the rows that a shape with subqueries gains and loses with each transaction.

The log of such a shape has changes of all of its tables. The versions of the other tables' rows determine what each
subquery returned at any time. The condition is then evaluated for each version of a row of its own table, and again
whenever a subquery result that it used has changed. So the changes of a transaction depend only on the rows before and
after it, and every reader computes the same ones from any position.

The subqueries' results over time are kept in memory; the rest is sorted in temporary files. If the results have not
changed, only changed rows are evaluated.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.joined_rows import is_of, joined_condition, named_columns, shown_text
from flushtracker.shape_log.table.row_versions import FIRST, VERSION_ORDER, Version, row_versions, versions_in
from flushtracker.shape_log.table.version_changes import version_changes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import joined_prefix
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.shapes.where.query_set import END


def joined_changes(
    table: DeltaTable, shape: FoundShape, after_tx: int, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The changes of a shape with subqueries after a transaction, up to its bound, as sent to clients.

    The columns are ``tx_offset``, ``rank``, ``key``, ``operation``, ``value`` and ``old_value``, in the order of the
    first three: within a transaction all deletes come first. An update has the whole row, and the old values of the
    changed columns. Raises as ``shape_rows``, also if the condition has no outcome at some time in between.
    """
    if shape.entry is None:
        raise ValueError("the definition of a shape with subqueries is known")
    definition = shape.entry.definition
    condition = joined_condition(shape, definition)
    versions = _own_versions(row_versions(table, shape, after_tx, check), condition, definition)
    # Sorting reads all versions before it returns the first one, so the subqueries are complete by then.
    own, names = _that_may_change(sort_tables(versions, VERSION_ORDER), condition), named_columns(shape)
    return version_changes(own, lambda each: _shown(each, condition, names), shape.key_columns, check)


def _own_versions(
    versions: Iterable[pa.Table], condition: JoinedCondition, definition: ShapeDefinition
) -> Iterator[pa.Table]:
    """The versions of rows of the shape's own table; those of its subqueries' tables are added to the condition."""
    for table in versions:
        for name in condition.inner_tables:
            for _, since, until, value in versions_in(table.filter(is_of(table, joined_prefix(name)))):
                condition.add(name, columns_of(value), (since, until))
        yield table.filter(is_of(table, joined_prefix(definition.table)))


def _that_may_change(own: Iterable[pa.Table], condition: JoinedCondition) -> Iterator[Version]:
    is_settled = False
    for table in own:
        if not is_settled:
            condition.settle()
            is_settled = True
        if not condition.has_changes:
            is_other = pc.or_(pc.greater(table["since"], FIRST), pc.less(table["until"], END))
            yield from versions_in(table.filter(is_other))
        else:
            yield from versions_in(table)


def _shown(
    versions: Iterable[Version], condition: JoinedCondition, names: tuple[str, ...] | None
) -> Iterator[tuple[int, str | None]]:
    """The shape's version of one row from each transaction on; ``None`` for no row."""
    end = FIRST
    for _, since, until, value in versions:
        if since > end:
            yield end, None
        columns = columns_of(value)
        text = value if names is None else shown_text(columns, names)
        for start, _, is_in in condition.outcomes(columns, (since, until)):
            yield start, text if is_in else None
        end = until
    if end < END:
        yield end, None
