"""Builds the literals of a ``where``: casts, arrays, signs and patterns."""

import re
from collections.abc import Sequence
from dataclasses import replace

from flushtracker.shapes.where import sql_values
from flushtracker.shapes.where.letter_case import LetterCase, case_variants, has_other_letters
from flushtracker.shapes.where.like_pattern import LikePattern
from flushtracker.shapes.where.number_values import parse_short_numeric
from flushtracker.shapes.where.tokens import refused, shorten
from flushtracker.shapes.where.tree import CaseMapping, Constant, EnumName, Like, Node, TextCast

_NUMBERS = frozenset(number.oid for number in sql_values.TYPES.values() if number.family in ("exact", "float"))
_INTEGER_ARRAYS = frozenset(oid for oid, item in sql_values.ARRAYS.items() if item in _NUMBERS)
_ARRAY_ESCAPE = re.compile(r'["\\]')


def number(text: str) -> Constant:
    """A number literal, with or without a sign, which helps determine its type."""
    try:
        return Constant(text, sql_values.number_type(text).oid)
    except ValueError as error:
        raise refused(f"the number {shorten(text)}", "write it in digits within the range of numeric") from error


def negated_literal(operand: Node) -> Constant | None:
    """The literal that ``- operand`` equals, if a cast has made it a number; ``None`` otherwise."""
    if not isinstance(operand, Constant) or operand.type_oid not in _NUMBERS or not operand.text:
        return None
    try:
        sql_values.TYPES[operand.type_oid].parse(operand.text)
    except ValueError:
        return None
    return Constant(f"-{operand.text}", operand.type_oid) if operand.text[0].isdigit() else None


def cast(operand: Node, target: int | EnumName, *, is_plain: bool) -> Node:
    """A cast to a built-in type, by its OID, or to an enum; ``is_plain``: the operand is a number or ARRAY, not another
    cast.

    A second cast would convert the result of the first: ``'0.1'::real::numeric`` is not 0.1.
    """
    oid, enum = (None, target) if isinstance(target, EnumName) else (target, None)
    if not isinstance(operand, Constant):
        if oid in (sql_values.TEXT, sql_values.VARCHAR):
            return TextCast(operand)
        raise refused(
            "a cast of something that is not a literal", "cast the literal that it is compared with, or cast to text"
        )
    if is_plain and {operand.type_oid, oid} <= _INTEGER_ARRAYS:
        return replace(operand, type_oid=oid)
    is_number = is_plain and {operand.type_oid, oid} <= _NUMBERS
    if not (operand.is_untyped or is_number or (operand.type_oid, operand.enum) == (oid, enum)):
        raise refused("a cast of a literal of another type", "write the literal in quotes")
    return replace(operand, type_oid=oid, enum=enum)


def array_literal(items: Sequence[Node], *, is_cast: bool) -> Constant:
    """``ARRAY[...]`` of literals as the equal literal, untyped if a cast gives it a type."""
    advice = "write an array of integers or of strings, or a quoted literal, as in '{1,2}'"
    constants = [item for item in items if isinstance(item, Constant)]
    oids = {sql_values.TEXT if item.type_oid is None else item.type_oid for item in constants if item.text is not None}
    if len(constants) < len(items) or any(item.enum for item in constants):
        raise refused("ARRAY[...] with something other than plain literals", advice)
    if oids == {sql_values.INT4, sql_values.INT8}:
        oids = {sql_values.INT8}
    array_oids = [oid for oid, item_oid in sql_values.ARRAYS.items() if {item_oid} == oids]
    is_open = is_cast and oids <= {sql_values.TEXT} and all(item.type_oid is None for item in constants)
    if not array_oids and not is_open:
        raise refused("ARRAY[...] of this type, or of several", advice)
    texts = ["NULL" if item.text is None else _ARRAY_ESCAPE.sub(r"\\\g<0>", item.text) for item in constants]
    quoted = [text if item.text is None else f'"{text}"' for item, text in zip(constants, texts, strict=True)]
    mapped_by = next((item.mapped_by for item in constants if item.mapped_by), None)
    return Constant("{" + ",".join(quoted) + "}", None if is_open else array_oids[0], mapped_by=mapped_by)


def mapped_case(case: LetterCase, operand: Node) -> Node:
    """``lower`` or ``upper``; of a literal, the resulting literal."""
    if not isinstance(operand, Constant) or operand.text is None:
        return CaseMapping(case, operand)
    if not operand.may_be_text or len(variants := case_variants(operand.text, case)) > 1:
        raise refused(f"{case}(...) of this literal", "write the result as a literal")
    if has_other_letters(operand.text):
        raise refused(f"{case}(...) of a literal with a non-ASCII letter", "compare the text as it is stored")
    return Constant(variants[0], sql_values.TEXT, mapped_by=case)


def escape_of(node: Node) -> str:
    """The escape character of LIKE, or none."""
    if not isinstance(node, Constant) or not node.is_untyped or node.text is None or len(node.text) > 1:
        raise refused("ESCAPE with anything but one character in quotes, or none", "write it as in ESCAPE '!'")
    return node.text


def like(operand: Node, pattern: Node, escape: str, *, ignore_case: bool) -> Like:
    name = "ILIKE" if ignore_case else "LIKE"
    if not isinstance(pattern, Constant) or not pattern.may_be_text:
        raise refused(f"{name} with a pattern that is not a string literal", "use a string literal")
    if pattern.text is None:
        return Like(operand, None, ignore_case)
    if (ignore_case or isinstance(operand, CaseMapping)) and has_other_letters(pattern.text):
        raise refused(
            f"{name} with a non-ASCII letter, whose case mapping depends on the database's collation",
            "change the pattern",
        )
    try:
        return Like(operand, LikePattern.parse(pattern.text, ignore_case=ignore_case, escape=escape), ignore_case)
    except ValueError as error:
        raise refused(f"{name} with {error}", "change the pattern") from error


def require_divisor(operator: str, divisor: Node) -> None:
    """Refuse a division by a literal that is zero."""
    if isinstance(divisor, Constant) and divisor.text is not None and _is_zero(divisor.text):
        raise refused(f"{operator} by zero, which is an error in every row", "divide by something else")


def _is_zero(text: str) -> bool:
    try:
        return parse_short_numeric(text.strip(sql_values.BLANKS)) == 0
    except ValueError:
        return False
