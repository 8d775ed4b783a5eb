"""``compared_texts``: the columns that the server compares by one operator, or passes to one function, as texts.

The server needs one collation for them. A column's own collation takes precedence over the database's, but two
different ones conflict, and the server raises an error for each row.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from flushtracker.shapes.where.server_encoding import within
from flushtracker.shapes.where.tree import (
    AnyOf,
    ArrayTest,
    CaseMapping,
    ColumnRef,
    Comparison,
    InQuery,
    IsNull,
    IsTruth,
    Junction,
    Like,
    Membership,
    Node,
    Not,
    Query,
    children,
)
from flushtracker.wal.changes import TableName

ColumnOf: TypeAlias = tuple[TableName, str]
_BOOLEANS: Final = (Comparison, Membership, InQuery, AnyOf, ArrayTest, Like, IsNull, IsTruth, Not, Junction)
_COLLATED: Final = (Comparison, Membership, AnyOf, ArrayTest, Like, CaseMapping)
"""Nodes that have a collation if they have texts."""


def compared_texts(condition: Node, table: TableName) -> Iterator[frozenset[ColumnOf]]:
    """The columns of each operator and function of a condition on ``table``, including its subqueries.

    They include columns that are not text and have no collation.

    >>> from flushtracker.shapes.where.syntax import read_condition
    >>> condition, _ = read_condition("(a || b = c) = (d = 'x') AND e IN (SELECT f FROM s.u WHERE g LIKE 'x')")
    >>> [sorted(".".join((*table, name)) for table, name in each) for each in compared_texts(condition, ("s", "t"))]
    [[], ['s.t.a', 's.t.b', 's.t.c'], ['s.t.d'], ['s.t.e', 's.u.f'], ['s.u.g']]
    """
    for node in within(condition):
        match node:
            case InQuery(operand, query):
                yield frozenset([*_columns([operand], table), (query.table, query.column)])
                if query.condition is not None:
                    yield from compared_texts(query.condition, query.table)
            case _ if isinstance(node, _COLLATED):
                yield frozenset(_columns(children(node), table))


def _columns(nodes: Iterator[Node | Query] | list[Node], table: TableName) -> Iterator[ColumnOf]:
    """The columns that the operands are computed from, except those inside nested conditions."""
    for node in nodes:
        if isinstance(node, ColumnRef):
            yield table, node.name
        elif not isinstance(node, _BOOLEANS):
            yield from _columns(children(node), table)
