"""Reads the subquery of ``value IN (SELECT column FROM schema.table WHERE condition)``; anything else is refused."""

from collections.abc import Callable

from sqlglot import exp

from flushtracker.shapes.where.leaves import column_name, folded, name_of
from flushtracker.shapes.where.tokens import QUERY_FORM, refused
from flushtracker.shapes.where.tree import Node, Query
from flushtracker.wal.changes import TableName


def read_query(node: exp.Expr, read: Callable[[exp.Expr], Node]) -> Query:
    """The query; ``read`` reads its condition. Raises ``ShapeError``."""
    select = node.this if type(node) is exp.Subquery else node
    if type(select) is not exp.Select:
        raise refused(f"a subquery with {name_of(select)}", QUERY_FORM)
    for name, part in select.args.items():
        if name not in ("expressions", "from_", "where") and part:
            raise refused(f"a subquery with {name.strip('_').upper()}", QUERY_FORM)
    selected, where = select.expressions, select.args.get("where")
    if len(selected) != 1 or type(selected[0]) is not exp.Column:
        raise refused("a subquery of anything but one column", QUERY_FORM)
    condition = None if where is None else read(where.this)
    return Query(_table(select.args.get("from_")), column_name(selected[0]), condition)


def _table(source: exp.Expr | None) -> TableName:
    table = None if source is None else source.this
    if type(table) is not exp.Table:
        raise refused("a subquery without a table", QUERY_FORM)
    for part, value in table.args.items():
        if part not in ("this", "db") and value:
            raise refused(f"a subquery whose table has {part.upper()}", QUERY_FORM)
    schema, name = table.args.get("db"), table.this
    if type(schema) is not exp.Identifier or type(name) is not exp.Identifier:
        raise refused("a subquery of a table without its schema", "write it, as in FROM public.projects")
    return folded(schema), folded(name)
