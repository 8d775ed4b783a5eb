"""``SubsetRows``: chooses the rows of a subset among a shape's rows, within bounds.

A condition and an order read only what the shape shows: whether a row is there tells nothing of its other columns.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from flushtracker.config.serve_config import SubsetRules
from flushtracker.errors import ShapeError
from flushtracker.serve.body import PAGE_BYTES, Body, join
from flushtracker.serve.condition_text import condition_of, parsed_condition
from flushtracker.serve.handle import Handle
from flushtracker.serve.on_demand.containment import require_own_rules
from flushtracker.serve.on_demand.selected_log import checked, in_steps
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.subset.row_order import OrderedRow, RowOrder
from flushtracker.serve.subset.subset_request import Subset
from flushtracker.shape_log.fold import columns_of
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.where import Where
from flushtracker.wal.changes import Relation, Row

_MOST_HELD: Final = 64 << 20
"""The maximum size of the texts of rows while they are sorted."""
_ROW_BYTES: Final = 200
"""About what a row takes besides its text."""

_NO_XID: Final = 3
"""PostgreSQL's first xid of a transaction."""


@dataclass(frozen=True, slots=True)
class SubsetRows:
    """Chooses up to ``most_rows`` rows; ``matches`` is ``None`` for any row."""

    matches: Callable[[Row], bool | None] | None
    order: RowOrder
    limit: int | None
    offset: int
    most_rows: int

    @classmethod
    def of(cls, subset: Subset, shape: SeenShape, rules: SubsetRules) -> "SubsetRows":
        """A subset of the rows of a shape.

        Raises:
            BadRequestError: it does not fit the shape, needs an order that is unknown here, or is too large.
        """
        if subset.limit is not None and subset.offset + subset.limit > rules.most_rows:
            raise BadRequestError(
                f"subset__offset and subset__limit are more than {rules.most_rows} together (subsets.rows); go on by a "
                "condition instead, such as id > the last one's"
            )
        relation = shown_relation(shape)
        by_bytes = _by_bytes(shape, every=rules.has_text_in_bytes)
        # The order of all rows decides nothing.
        is_cut = subset.limit is not None or subset.offset > 0
        return cls(
            _condition(subset, shape, relation, by_bytes),
            RowOrder.of(subset.order_by, relation, by_bytes=by_bytes if is_cut else _by_bytes(shape, every=True)),
            subset.limit,
            subset.offset,
            rules.most_rows,
        )

    def chosen(self, tables: Iterable[pa.Table], check: Callable[[], None]) -> pa.Table:
        """The chosen ones of a shape's rows, with the columns ``key`` and ``value``.

        Raises:
            BadRequestError: there are too many. DecodeError: the condition has no outcome for a row.
        """
        kept = None if self.limit is None else self.offset + self.limit
        rows, size = list[OrderedRow](), 0
        for row in self._matching(tables, check):
            if kept == 0:
                break
            rows.append(row)
            size += len(row.text) + _ROW_BYTES
            if kept is not None and (len(rows) >= 2 * kept + 1_000 or size > _MOST_HELD):
                rows = self.order.sort(rows, check)[:kept]
                size = sum(len(row.text) + _ROW_BYTES for row in rows)
                if size > _MOST_HELD // 2:
                    # The next sort would be due after a few rows.
                    raise _too_many(f"has more than {_MOST_HELD >> 21} MiB, with the rows before subset__offset")
            if len(rows) > self.offset + self.most_rows and kept is None:
                raise _too_many(f"has more than {self.most_rows} rows (subsets.rows)")
            if size > _MOST_HELD:
                raise _too_many(f"has more than {_MOST_HELD >> 20} MiB, with the rows before subset__offset")
        rows = self.order.sort(rows, check)[self.offset : kept]
        if sum(len(row.text.encode()) for row in rows) > PAGE_BYTES:
            raise _too_many(f"has more than {PAGE_BYTES >> 20} MiB")
        return pa.table({"key": [row.key for row in rows], "value": [row.text for row in rows]})

    def _matching(self, tables: Iterable[pa.Table], check: Callable[[], None]) -> Iterator[OrderedRow]:
        is_read = self.matches is not None or bool(self.order.terms)
        for table in in_steps(tables, check):
            pairs = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
            for key, text in checked(pairs, check):
                row: Row = columns_of(text) if is_read else {}
                if self.matches is None or self.matches(row) is True:
                    yield self.order.row(key, text, row)


def shown_relation(shape: SeenShape) -> Relation | None:
    """The table with the columns that the shape shows; ``None`` if their types are not known."""
    table = shape.found.table
    if table is None:
        return None
    selection = shape.selection
    names = {*shape.found.columns} if selection is None or selection.names is None else {*selection.names}
    relation = relation_of(table)
    return replace(relation, columns=tuple(each for each in relation.columns if each.name in names))


def _by_bytes(shape: SeenShape, *, every: bool) -> frozenset[str]:
    """The columns whose texts are ordered by bytes."""
    columns = () if shape.found.table is None else shape.found.table.columns
    return frozenset(column.name for column in columns if every or column.is_bytewise)


def _condition(
    subset: Subset, shape: SeenShape, relation: Relation | None, by_bytes: frozenset[str]
) -> Callable[[Row], bool | None] | None:
    try:
        where = parsed_condition(condition_of(subset.where, subset.params))
        return None if where is None else _bound(where, shape, relation, by_bytes)
    except ShapeError as error:
        raise BadRequestError(f"subset: {error}") from error
    except BadRequestError as error:
        raise BadRequestError(f"subset: {error.message}") from error


def _bound(
    where: Where, shape: SeenShape, relation: Relation | None, by_bytes: frozenset[str]
) -> Callable[[Row], bool | None]:
    if relation is None or shape.found.table is None:
        raise BadRequestError("where needs the types of the columns, which are not known here")
    hidden = sorted(where.columns - {column.name for column in relation.columns})
    if hidden:
        raise BadRequestError(f'where reads column "{hidden[0]}", which the shape does not show')
    require_own_rules(where, shape.found.table, shape.found.key_columns)
    return where.bind(relation, by_bytes)


def _too_many(reason: str) -> BadRequestError:
    return BadRequestError(f"the subset {reason}; ask for less, by subset__where or subset__limit")


@dataclass(frozen=True, slots=True)
class ReadSubset:
    """The ``body`` of an answer with rows of ``shape``, none of which is older than after the transaction ``since``.

    ``is_exact``: they are those after it, whoever asks and whenever. ``rows`` is their number.
    """

    shape: SeenShape
    since: int
    body: Body
    is_exact: bool
    rows: int


def subset_mark(subset: Subset, handle: Handle, since: int) -> int:
    """The number of a subset among those of a client; the same for all servers."""
    text = repr((subset, handle.begun, since)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


def subset_body(messages: list[bytes], since: int, mark: int) -> bytes:
    """The body of an answer: the rows, and that a client's stream after ``since`` has no transaction that they
    contain.

    By its xids a client skips what its stream repeats. No transaction has an xid below 3.
    """
    metadata = (
        f'{{"xmin":"{_NO_XID}","xmax":"{_NO_XID}","xip_list":[],"snapshot_mark":{mark:d},"database_lsn":"{since:d}"}}'
    )
    return b'{"metadata":' + metadata.encode() + b',"data":[' + join(messages) + b"]}"
