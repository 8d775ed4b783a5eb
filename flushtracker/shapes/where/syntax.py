"""Parses a ``where`` into a small tree. Anything that the tree cannot represent is refused by name.

A recursive descent parser for the supported part of PostgreSQL's grammar (``a_expr`` in gram.y). Each token is consumed
by one rule or refused, so nothing that was written is lost. The precedences are PostgreSQL's: operators of the levels
IS, comparison and BETWEEN do not associate, so a second one on such a level needs parentheses there, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from flushtracker.errors import ShapeError
from flushtracker.shapes.where import leaves, sql_values
from flushtracker.shapes.where.name_parser import Names
from flushtracker.shapes.where.tokens import MAX_PARENTHESES, QUERY_FORM, Token, refused, too_deep
from flushtracker.shapes.where.tree import (
    AnyOf,
    Arithmetic,
    ArrayTest,
    ColumnRef,
    Comparison,
    Concatenation,
    Constant,
    EnumName,
    InQuery,
    IsNull,
    IsTruth,
    Junction,
    Membership,
    Negation,
    Node,
    Not,
    Query,
    children,
)

_LOOSEST, _OR, _AND, _NOT, _IS, _COMPARISON, _RANGE, _OTHER, _SUM, _PRODUCT = range(10)
_SYMBOLS: Final = {
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys(("||", "@>", "<@", "&&"), _OTHER),
    **dict.fromkeys("+-", _SUM),
    **dict.fromkeys("*/%", _PRODUCT),
}
_RANGES: Final = ("between", "in", "like", "ilike")
_WORDS: Final = {"or": _OR, "and": _AND, **dict.fromkeys(("is", "isnull", "notnull"), _IS)} | dict.fromkeys(
    _RANGES, _RANGE
)
_MAX_NESTING: Final = 100
_Infix: TypeAlias = Callable[[Node], Node]


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """The place of ``value [NOT] IN (SELECT ...)`` in a text, and of its condition."""

    start: int
    end: int
    is_negated: bool
    condition: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class NameSpan:
    """The place of an unquoted column or an enum without a schema; ``name`` is the catalog's."""

    start: int
    end: int
    name: str
    is_type: bool


@dataclass(frozen=True, slots=True)
class Parsed:
    """A condition: its tree, the columns that it reads itself, and the places of names and of the outermost queries."""

    condition: Node
    columns: frozenset[str]
    names: tuple[NameSpan, ...]
    queries: tuple[QuerySpan, ...]


def read_condition(text: str, schema: str | None = None) -> tuple[Node, frozenset[str]]:
    """The tree of a ``where`` and the columns it reads; raises ``ShapeError`` naming what is not supported.

    Tables without a schema are in ``schema``; if that is ``None``, they are refused.
    """
    parsed = parse(text, schema)
    return parsed.condition, parsed.columns


def parse(text: str, schema: str | None = None) -> Parsed:
    """Parse a condition; raises ``ShapeError``."""
    try:
        parser = _Parser(text, schema)
        if parser.next.kind == "end":
            raise ShapeError("where is empty; leave it out to match every row")
        condition = parser.whole()
    except RecursionError as error:
        raise too_deep() from error
    level: list[Node | Query] = [condition]
    for _ in range(_MAX_NESTING):
        level = [child for node in level for child in children(node)]
    if level:
        raise too_deep()
    return Parsed(condition, frozenset(parser.columns), tuple(parser.names), tuple(parser.queries))


class _Parser(Names):
    """The operators; each method consumes the tokens of its result."""

    def __init__(self, text: str, schema: str | None) -> None:
        super().__init__(text, schema)
        self.columns: set[str] = set()
        self.names: list[NameSpan] = []
        self.queries: list[QuerySpan] = []
        self._parentheses = self._query_depth = 0
        # A sign belongs to a number literal, also in parentheses, but not to the result of a cast.
        self._literals: dict[int, Constant] = {}

    def whole(self) -> Node:
        """The condition up to the end of the text."""
        condition = self._expression(_LOOSEST)
        if self.next.kind != "end":
            self.unexpected()
        return condition

    def _expression(self, binding: int) -> Node:
        """An expression whose operators bind at least as tightly as ``binding``."""
        start, left = self.next.start, self._prefix(binding)
        while self._tightness() >= max(binding, _OR):
            left = self._infix(start)(left)
        return left

    def _tightness(self) -> int:
        """The precedence of the next operator; ``_LOOSEST`` if there is none."""
        token = self.next
        if token.is_word("not") and self.after.is_word(*_RANGES):
            return _RANGE
        return {"symbol": _SYMBOLS, "word": _WORDS}.get(token.kind, {}).get(token.value, _LOOSEST)

    def _prefix(self, binding: int) -> Node:
        count = 0
        while self.next.is_word("not"):
            if binding > _NOT:
                raise _needs_parentheses("NOT")
            self.take()
            count += 1
        if not count:
            return self._signed(0)
        if count > MAX_PARENTHESES:
            raise too_deep()
        node = self._expression(_NOT)
        for _ in range(count):
            node = Not(node)
        return node

    def _infix(self, start: int) -> _Infix:
        """The constructor of the next operator's node, given its left operand, which begins at ``start``."""
        token = self.take()
        if token.kind == "symbol":
            tightness = _SYMBOLS[token.value]
            if tightness == _COMPARISON:
                return partial(self._comparison, token.value)
            return partial(self._calculation if tightness > _OTHER else self._other, token.value)
        if token.is_word("not"):
            test = self._test(self.take(), start, is_negated=True)
            return lambda operand: Not(test(operand))
        return self._test(token, start, is_negated=False)

    def _test(self, token: Token, start: int, *, is_negated: bool) -> _Infix:
        tests: dict[str, _Infix] = {
            "or": partial(self._junction, "or"),
            "and": partial(self._junction, "and"),
            "is": self._is,
            "isnull": IsNull,
            "notnull": lambda operand: Not(IsNull(operand)),
            "between": self._between,
            "in": partial(self._in, start, is_negated),
            "like": partial(self._like, False),  # noqa: FBT003  the first of two
            "ilike": partial(self._like, True),  # noqa: FBT003  likewise
        }
        return tests[token.value]

    def _right(self, tightness: int) -> Node:
        """The right operand of a non-associative operator."""
        right = self._expression(tightness + 1)
        if self._tightness() == tightness:
            raise _needs_parentheses(self.text_of(self.next))
        return right

    def _junction(self, word: str, left: Node) -> Node:
        # Keep a chain of a thousand ORs from becoming a tree a thousand levels deep.
        parts, tightness = [left], _WORDS[word]
        parts.append(self._expression(tightness + 1))
        while self.skip_word(word):
            parts.append(self._expression(tightness + 1))
        return Junction(word.upper(), tuple(parts))

    def _is(self, operand: Node) -> Node:
        is_negated = self.skip_word("not")
        if self.skip_word("distinct"):
            self.expect_word("from")
            name = "IS NOT DISTINCT FROM" if is_negated else "IS DISTINCT FROM"
            return Comparison(name, operand, self._right(_IS), name)
        if not self.next.is_word("null", "true", "false", "unknown"):
            found = self.text_of(self.next).upper() or "nothing after it"
            raise refused(f"IS with {found}", "IS accepts NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        value = self.take().value
        test: Node
        if value == "null":
            test = IsNull(operand)
        else:
            test = IsTruth(operand, {"true": True, "false": False, "unknown": None}[value])
        return Not(test) if is_negated else test

    def _comparison(self, operator: str, left: Node) -> Node:
        if not self.next.is_word("any", "all"):
            return Comparison(operator, left, self._right(_COMPARISON), operator)
        quantifier = self.take().value.upper()
        array = self._in_parentheses()
        if (quantifier, operator) not in (("ANY", "="), ("ALL", "<>")) or not isinstance(array, ColumnRef | Constant):
            raise refused(
                f"{operator} {quantifier}(...) of this array",
                "write value = ANY(array), or value <> ALL(array), of a column or a literal",
            )
        return AnyOf(left, array) if quantifier == "ANY" else Not(AnyOf(left, array))

    def _between(self, operand: Node) -> Node:
        if self.next.is_word("symmetric", "asymmetric"):
            raise refused(f"BETWEEN {self.next.value.upper()}", "write the lower bound first, and BETWEEN alone")
        low = self._expression(_RANGE + 1)
        self.expect_word("and")
        high = self._right(_RANGE)
        return Junction("AND", (Comparison(">=", operand, low, "BETWEEN"), Comparison("<=", operand, high, "BETWEEN")))

    def _like(self, ignore_case: bool, operand: Node) -> Node:  # noqa: FBT001 - the first of two in a partial
        pattern, escape = self._expression(_RANGE + 1), "\\"
        if self.skip_word("escape"):
            escape = leaves.escape_of(self._expression(_RANGE + 1))
        if self._tightness() == _RANGE:
            raise _needs_parentheses(self.text_of(self.next))
        return leaves.like(operand, pattern, escape, ignore_case=ignore_case)

    def _in(self, start: int, is_negated: bool, operand: Node) -> Node:  # noqa: FBT001 - likewise
        if not self.next.is_symbol("(") or self.after.is_symbol(")"):
            raise refused("IN without a list", "write IN with a list of literals")
        self.take()
        if self.next.is_word("select"):
            query, condition = self._query()
            if not self._query_depth:
                self.queries.append(QuerySpan(start, self.take_symbol(")").end, is_negated, condition))
            else:
                self.take_symbol(")")
            return InQuery(operand, query)
        items = tuple(self._list(")"))
        constants = tuple(item for item in items if isinstance(item, Constant))
        if len(constants) < len(items):
            raise refused("IN with an item that is not a literal", "compare with = and OR")
        return Membership(operand, constants)

    def _query(self) -> tuple[Query, tuple[int, int] | None]:
        """``SELECT column FROM schema.table WHERE condition``, and the place of its condition."""
        self.take()
        self._query_depth += 1
        if self.next.is_word("distinct", "all"):
            raise refused(f"a subquery with {self.next.value.upper()}", QUERY_FORM)
        is_column = self.next.kind in ("word", "name") and (
            self.after.is_word("from") or self.after.is_symbol(".", "(")
        )
        if not is_column:
            raise refused("a subquery of anything but one column", QUERY_FORM)
        column = self._column()
        self.expect_word("from")
        table, condition, span = self.table_name(), None, None
        if self.next.is_word("where"):
            start = self.take().end
            condition = self._expression(_LOOSEST)
            span = start, self.next.start
        if not self.next.is_symbol(")"):
            raise refused(f"a subquery with {self.text_of(self.next).upper() or 'no end'}", QUERY_FORM)
        self._query_depth -= 1
        return Query(table, column.name, condition), span

    def _other(self, operator: str, left: Node) -> Node:
        right = self._expression(_OTHER + 1)
        if operator == "||":
            return Concatenation(left, right)
        return ArrayTest("@>", right, left) if operator == "<@" else ArrayTest(operator, left, right)

    def _calculation(self, operator: str, left: Node) -> Node:
        right = self._expression(_SYMBOLS[operator] + 1)
        if operator in ("/", "%"):
            leaves.require_divisor(operator, right)
        return Arithmetic(operator, left, right)

    def _signed(self, depth: int) -> Node:
        if depth > MAX_PARENTHESES:
            raise too_deep()
        if self.skip_symbol("-"):
            operand = self._signed(depth + 1)
            if self._is_plain(operand) and isinstance(operand, Constant) and operand.text is not None:
                # A number literal gets its type after its sign: -2147483648 is an integer.
                text = operand.text
                return self._number(text.removeprefix("-") if text.startswith("-") else f"-{text}")
            return leaves.negated_literal(operand) or Negation(operand)
        if self.skip_symbol("+"):
            if self.next.kind != "number":
                # On a quoted literal it would mean double precision, and other types have no unary plus.
                raise refused(f"+ before {self.text_of(self.next) or 'nothing'}", "leave the + out")
            literal = self._number(self.take().value)
            node = self._casts(literal)
            # Another sign before it would not belong to the number.
            return replace(literal) if node is literal else node
        return self._casts(self._operand())

    def _number(self, text: str) -> Constant:
        return self._literal(leaves.number(text))

    def _literal(self, constant: Constant) -> Constant:
        self._literals[id(constant)] = constant
        return constant

    def _is_plain(self, node: Node) -> bool:
        """Whether it is a number with its sign, or an ARRAY, and no cast."""
        return id(node) in self._literals

    def _casts(self, node: Node) -> Node:
        while self.skip_symbol("::"):
            target = self._type()
            node = leaves.cast(node, target, is_plain=self._is_plain(node))
        if self.next.is_symbol("["):
            self.unexpected()
        return node

    def _type(self) -> int | EnumName:
        start = self.next
        found = self.type_name()
        if isinstance(found, EnumName) and found.schema is None:
            self.names.append(NameSpan(start.start, start.end, found.name, is_type=True))
        return found

    def _operand(self) -> Node:
        token = self.next
        if token.kind == "number":
            return self._number(self.take().value)
        if token.kind == "string":
            self.take()
            if self.next.kind == "string":
                self.unexpected()
            return Constant(token.value)
        if token.is_symbol("("):
            return self._in_parentheses()
        if token.kind == "word" and (read := self._keyword(token)) is not None:
            return read()
        if token.kind not in ("word", "name"):
            self.unexpected()
        if self.begins_typed_literal():
            target = self._type()
            return leaves.cast(Constant(self.take().value), target, is_plain=True)
        return self._column()

    def _keyword(self, token: Token) -> Callable[[], Node] | None:
        """How to read an expression that begins with a keyword; ``None`` if the word is a name."""
        word, is_called = token.value, self.after.is_symbol("(")
        if word in ("null", "true", "false"):
            return partial(self._constant, token)
        if word == "array":
            return self._array
        if word == "cast" and is_called:
            return self._cast
        if word in ("lower", "upper") and is_called:
            return partial(self._case, token)
        return None

    def _constant(self, token: Token) -> Node:
        self.take()
        return Constant(None) if token.value == "null" else Constant(token.value[0], sql_values.BOOLEAN)

    def _cast(self) -> Node:
        self.take()
        self.take_symbol("(")
        self._open()
        operand = self._expression(_LOOSEST)
        self.expect_word("as")
        target = self._type()
        self._close()
        return leaves.cast(operand, target, is_plain=self._is_plain(operand))

    def _case(self, token: Token) -> Node:
        self.take()
        return leaves.mapped_case("lower" if token.value == "lower" else "upper", self._in_parentheses())

    def _array(self) -> Node:
        self.take()
        if not self.skip_symbol("["):
            raise refused("ARRAY without [...]", "write an array type as in ::int[]")
        items = [] if self.skip_symbol("]") else self._list("]")
        is_cast = self.next.is_symbol("::") or self.next.is_word("as")
        return self._literal(leaves.array_literal(items, is_cast=is_cast))

    def _list(self, end: str) -> list[Node]:
        self._open()
        items = [self._expression(_LOOSEST)]
        while self.skip_symbol(","):
            items.append(self._expression(_LOOSEST))
        self._close(end)
        return items

    def _in_parentheses(self) -> Node:
        self.take_symbol("(")
        self._open()
        node = self._expression(_LOOSEST)
        if self.next.is_symbol(","):
            raise refused("a row of several values", "compare one value with another, and use AND")
        self._close()
        return node

    def _open(self) -> None:
        self._parentheses += 1
        if self._parentheses > MAX_PARENTHESES:
            raise too_deep()

    def _close(self, end: str = ")") -> None:
        self._parentheses -= 1
        self.take_symbol(end)

    def _column(self) -> ColumnRef:
        token = self.next
        name = self.column_name()
        if token.kind == "word":
            self.names.append(NameSpan(token.start, token.end, name, is_type=False))
        if not self._query_depth:
            self.columns.add(name)
        return ColumnRef(name)


def _needs_parentheses(operator: str) -> ShapeError:
    return refused(f"{operator.upper()} as an operand without parentheses", "put parentheses around it")
