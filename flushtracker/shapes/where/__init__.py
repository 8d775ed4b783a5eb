"""The ``where`` of a shape: SQL in PostgreSQL's dialect, compiled into a predicate over the text of a row.

A condition is true, false or unknown (``None``), as in SQL; only true matches a row. Capture refuses conditions that
depend on information that it does not have. Examples are the order of text (the column's collation), a timestamp
without an offset compared with ``timestamptz`` (the session's time zone), and types with unknown operators. The
relation describes its user types (:class:`~flushtracker.wal.changes.UserType`). If PostgreSQL would raise an error for
a row, the predicate raises one too: for a division by zero, or a number out of the range of ``double precision`` or of
``numeric``. The exception is an overflow of integers, which are computed exactly; a snapshot evaluates conditions that
calculate here, too, and not on the server.

``lower``, ``upper`` and ILIKE map ASCII letters as every collation does, except those of Turkish, Azeri and Lithuanian,
which are refused. Other letters are compared only where their case makes no difference (:mod:`~.letter_case`). Text is
equal if its characters are equal; a column with a nondeterministic collation may compare differently.

A condition may have subqueries, ``value [NOT] IN (SELECT column FROM schema.table WHERE condition)``, which read no
other table's columns. :mod:`~.subqueries` divides it into conditions of one table each.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from flushtracker.errors import ShapeError
from flushtracker.shapes.where.binding import bind
from flushtracker.shapes.where.canonical import Form, canonical
from flushtracker.shapes.where.case_mappings import CaseMappings, case_mappings
from flushtracker.shapes.where.chains import read_chain
from flushtracker.shapes.where.compared_texts import ColumnOf, compared_texts
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.shapes.where.operands import Operands
from flushtracker.shapes.where.required_ranges import RequiredRanges, required_ranges
from flushtracker.shapes.where.required_values import RequiredValues, required_values
from flushtracker.shapes.where.server_encoding import encoding_reasons
from flushtracker.shapes.where.syntax import read_condition
from flushtracker.shapes.where.tree import Node, may_overflow
from flushtracker.wal.changes import Relation, Row, TableName


@dataclass(frozen=True, slots=True)
class Where:
    """A condition, parsed but not yet bound to a table. ``columns`` are the names it reads, as in the catalog.

    Conditions of the same ``form`` differ only in their literals; ``None`` if no such form is known.
    """

    text: str
    columns: frozenset[str]
    form: str | None
    _condition: Node = field(repr=False, compare=False)

    def bind(self, relation: Relation, by_bytes: Container[str] = ()) -> Callable[[Row], bool | None]:
        """The predicate for rows of ``relation``, typed by its type OIDs; bind again when the relation changes.

        Texts of the columns ``by_bytes`` may be compared with literals by ``<`` and the like, and are by their bytes.

        Raises ``ShapeError`` for a column that the table lacks, and for incompatible types and literals. The predicate
        raises ``DecodeError`` for a value that is not of its column's type, for a row that lacks a column of
        ``columns``, and for a row without an outcome. Values are parsed as PostgreSQL sends them with ``DateStyle`` ISO
        and ``IntervalStyle`` postgres.
        """
        return bind(self._condition, relation, by_bytes=by_bytes)

    def joined(self, table: TableName, relations: Mapping[TableName, Relation]) -> JoinedCondition:
        """The condition for rows of ``table``; ``relations`` include the tables of its subqueries.

        Raises ``ShapeError`` as :meth:`bind`.
        """
        return JoinedCondition(self._condition, table, relations)

    def encoding_reasons(self, relation: Relation, encoding: str) -> list[str]:
        """Why a server whose database has this encoding may judge rows of ``relation`` differently; empty if it does
        not.

        It must be possible to bind the condition to ``relation``.
        """
        return list(encoding_reasons(self._condition, relation, encoding))

    @property
    def case_mappings(self) -> CaseMappings:
        """Where it depends on how collations map case."""
        return frozenset() if self.form is not None else case_mappings(self._condition)

    @property
    def may_overflow(self) -> bool:
        """Whether it has calculations that may fail on a server: integers overflow there, but not here."""
        return self.form is None and may_overflow(self._condition)

    def compared_texts(self, table: TableName) -> list[frozenset[ColumnOf]]:
        """The columns that it compares as texts if the shape is on ``table``; see :func:`~.compared_texts`."""
        return [] if self.form is not None else list(compared_texts(self._condition, table))

    def missing_columns(self, relation: Relation) -> list[ShapeError]:
        """An error for each column that it reads and ``relation`` does not have."""
        return Operands(relation).missing(sorted(self.columns))

    def canonical(self, relation: Relation | None = None) -> Form:
        """Equal for two conditions only if they mean the same; see :mod:`~flushtracker.shapes.where.canonical`."""
        return canonical(self._condition, relation)

    def required_values(self, relation: Relation) -> RequiredValues:
        """The values that a row of ``relation`` must have to match, for an index.

        A condition of this form must be bindable to ``relation``. Raises ``ValueError`` if this one is not, because of
        its literals.
        """
        return required_values(self._condition, relation)

    def required_ranges(self, relation: Relation) -> RequiredRanges:
        """The ranges that a row of ``relation`` must lie in to match; see :meth:`required_values`."""
        return required_ranges(self._condition, relation)


def parse_where(text: str, schema: str | None = None) -> Where:
    """Parse a condition; raises ``ShapeError`` naming the construct that is not supported.

    Tables of subqueries without a schema are in ``schema``, if that is given.

    >>> sorted(parse_where('Region = \\'eu\\' AND NOT "line/no" > 5').columns)
    ['line/no', 'region']
    """
    condition, columns, form = read_chain(text) or (*read_condition(text, schema), None)
    return Where(text, columns, form, condition)
