"""``case_mappings``: where a condition depends on how the server's collations map the case of letters."""

from collections.abc import Iterator
from typing import TypeAlias

from flushtracker.shapes.where.letter_case import LetterCase
from flushtracker.shapes.where.server_encoding import within
from flushtracker.shapes.where.tree import CaseMapping, ColumnRef, Constant, Like, Node

CaseMappings: TypeAlias = frozenset[tuple[LetterCase, frozenset[str]]]
"""Each function with the columns of its text, whose collation it uses; a literal has none."""


def case_mappings(condition: Node) -> CaseMappings:
    """The case mappings of a condition, without its subqueries; the server implements ILIKE with ``lower``.

    >>> from flushtracker.shapes.where.syntax import read_condition
    >>> sorted((case, *columns) for case, columns in case_mappings(read_condition("a ILIKE 'x' OR upper(b) = 'X'")[0]))
    [('lower', 'a'), ('upper', 'b')]
    """
    return frozenset(_mappings(condition))


def _mappings(condition: Node) -> Iterator[tuple[LetterCase, frozenset[str]]]:
    for node in within(condition):
        match node:
            case CaseMapping(case, operand):
                yield case, _columns(operand)
            case Like(operand, _, True):
                yield "lower", _columns(operand)
            case Constant(mapped_by=str() as case):
                yield case, frozenset()


def _columns(node: Node) -> frozenset[str]:
    return frozenset(each.name for each in within(node) if isinstance(each, ColumnRef))
