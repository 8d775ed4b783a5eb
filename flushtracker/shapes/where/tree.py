"""The syntax tree of a ``where``: frozen values, not yet typed, and independent of how it was spelled."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias, get_args

from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.letter_case import LetterCase
from flushtracker.shapes.where.like_pattern import LikePattern


@dataclass(frozen=True, slots=True)
class ColumnRef:
    name: str


@dataclass(frozen=True, slots=True)
class EnumName:
    """An enum, or an array of it, as named in a cast; without a ``schema`` it may be in any."""

    schema: str | None
    name: str
    is_array: bool = False

    def __str__(self) -> str:
        return (f"{self.schema}." if self.schema else "") + self.name + ("[]" if self.is_array else "")

    def matches(self, schema: str, name: str) -> bool:
        return self.name == name and self.schema in (None, schema)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. ``text`` is ``None`` for NULL; ``type_oid`` is ``None`` if the other operand determines the type.

    ``enum`` is the type of a literal that is cast to an enum; it then has no ``type_oid``. ``mapped_by`` is the case
    function that the server will apply and that was already applied here.
    """

    text: str | None
    type_oid: int | None = None
    enum: EnumName | None = None
    mapped_by: LetterCase | None = field(default=None, compare=False)

    @property
    def is_untyped(self) -> bool:
        return self.type_oid is None and self.enum is None

    @property
    def may_be_text(self) -> bool:
        """Whether it is a text, or may become one through another operand."""
        return self.is_untyped or self.type_oid in (sql_values.TEXT, sql_values.VARCHAR)


@dataclass(frozen=True, slots=True)
class TextCast:
    """A cast to ``text`` of something other than a literal."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Negation:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Concatenation:
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class CaseMapping:
    """``lower`` or ``upper`` of a text."""

    case: LetterCase
    operand: "Node"

    def __str__(self) -> str:
        return f"{self.case}(...)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``written_as`` is its name in errors: a BETWEEN is two comparisons."""

    operator: str
    left: "Node"
    right: "Node"
    written_as: str


@dataclass(frozen=True, slots=True)
class Membership:
    operand: "Node"
    items: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """``SELECT column FROM table WHERE condition``; all rows without a condition."""

    table: tuple[str, str]
    column: str
    condition: "Node | None"


@dataclass(frozen=True, slots=True)
class InQuery:
    """``operand IN (query)``."""

    operand: "Node"
    query: Query


@dataclass(frozen=True, slots=True)
class AnyOf:
    """``operand = ANY(array)``."""

    operand: "Node"
    array: "Node"


@dataclass(frozen=True, slots=True)
class ArrayTest:
    """``@>`` or ``&&``; ``<@`` is ``@>`` with its operands exchanged."""

    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Like:
    """``pattern`` is ``None`` for NULL."""

    operand: "Node"
    pattern: LikePattern | None
    ignore_case: bool

    @property
    def written_as(self) -> str:
        return "ILIKE" if self.ignore_case else "LIKE"


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class IsTruth:
    """``truth`` is ``None`` for IS UNKNOWN."""

    operand: "Node"
    truth: bool | None


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Junction:
    """AND or OR of all ``parts``; a chain of any length is one of these."""

    operator: str
    parts: tuple["Node", ...]


Node: TypeAlias = (
    ColumnRef
    | Constant
    | TextCast
    | Negation
    | Arithmetic
    | Concatenation
    | CaseMapping
    | Comparison
    | Membership
    | InQuery
    | AnyOf
    | ArrayTest
    | Like
    | IsNull
    | IsTruth
    | Not
    | Junction
)


_NODES: Final = (*get_args(Node), Query)


def may_overflow(node: "Node | Query") -> bool:
    """Whether it has a calculation other than a division by a literal, such as ``id % 8``.

    On a server an integer may overflow, or a divisor may be zero. The server may evaluate the operands of an AND in any
    order, so it may raise an error for a row that another operand excludes.
    """
    match node:
        case Arithmetic("/" | "%", left, Constant(str(text))) if text.isdecimal():
            return may_overflow(left)
        case Arithmetic() | Negation():
            return True
    return any(map(may_overflow, children(node)))


def children(node: Node | Query) -> "Iterator[Node | Query]":
    for each_field in fields(node):
        value = getattr(node, each_field.name)
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, _NODES))
