"""PostgreSQL's numbers: parsed from text, converted and computed as the server does.

NaN equals itself and is greater than every number. Exact numbers are not rounded, except quotients and, as on the
server, decimals after the 16,383rd. A ``Decimal`` keeps its decimals, because PostgreSQL derives the precision of a
quotient from them. No operator produces a numeric longer than the server would, so none takes more than some hundredths
of a second. Only short ones are converted to ``int``, whose cost is quadratic in the digits. Parsers raise
``ValueError``, and calculations and conversions ``ArithmeticError``; the caller adds the table and the column.
"""

import decimal
import math
import operator as operators
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_MOST_WHOLE_DIGITS = 131_072
_MOST_DECIMALS = 16_383
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE | re.ASCII)
# Enough digits for every result, so that nothing is rounded, and no traps, so that ∞ − ∞ is NaN and not an exception.
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


class GreaterThanAll:
    """Equal to itself and greater than everything else. An enum, because a pickled copy is the same object."""

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return other is self

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __ge__(self, other: object) -> bool:
        return True


class NotANumber(GreaterThanAll, Enum):
    """NaN as PostgreSQL orders it."""

    NAN = "NaN"


NAN = NotANumber.NAN


def integer_parser(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse_integer(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("not an integer")
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError("out of range")
        return value

    return parse_integer


def _non_finite(text: str) -> float | NotANumber:
    if text.lower() == "nan":
        return NAN
    if not (match := _INFINITY.fullmatch(text)):
        raise ValueError("not a number")
    return -math.inf if match[1] == "-" else math.inf


def parse_numeric(text: str) -> Decimal | NotANumber:
    """An exact number; the exponent is bounded, as it is in PostgreSQL."""
    value = parse_short_numeric(text)
    if isinstance(value, NotANumber) or "e" not in text.lower() or int(value.as_tuple().exponent) <= 0:
        return value
    # Without an exponent above 0, a result has as many decimals as in PostgreSQL.
    return _EXACT.quantize(value, Decimal(1))


def parse_short_numeric(text: str) -> Decimal | NotANumber:
    """The same number in its short form: ``1e131071`` has one digit. Do not calculate with it."""
    if _NUMBER.fullmatch(text):
        value = Decimal(text)
        if value and not -16_384 < value.adjusted() < _MOST_WHOLE_DIGITS:
            raise ValueError("out of range")
        return value
    value_or_nan = _non_finite(text)
    return value_or_nan if isinstance(value_or_nan, NotANumber) else Decimal(value_or_nan)


def parse_double(text: str) -> float | NotANumber:
    if not _NUMBER.fullmatch(text):
        return _non_finite(text)
    value = float(text)
    if math.isinf(value) or (value == 0 and Decimal(text) != 0):
        raise ValueError("out of range")
    return value


def parse_real(text: str) -> float | NotANumber:
    if not _NUMBER.fullmatch(text):
        return _non_finite(text)
    value = Decimal(text)
    try:
        single = nearest_single(value)
    except OverflowError as error:
        raise ValueError("out of range") from error
    if single == 0 and value != 0:
        raise ValueError("out of range")
    return single


def nearest_single(value: Decimal | int) -> float:
    """The single precision number nearest to ``value``; raises ``OverflowError`` if it is out of range.

    Rounding to double first could round a second time in the other direction. That cannot happen with round-to-odd: of
    the two neighbouring doubles, take the one whose last bit is 1.
    """
    double = float(value)
    if math.isinf(double):
        raise OverflowError("out of range")
    exact = Decimal(double)
    if exact != value and not struct.pack(">d", double)[-1] & 1:
        double = math.nextafter(double, math.inf if exact < value else -math.inf)
    return to_single(double)


def to_single(value: float) -> float:
    """The single precision number nearest to a double; raises ``OverflowError`` if it is out of range."""
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def _is_special(value: Any) -> bool:
    return isinstance(value, NotANumber) or value in (math.inf, -math.inf)


def is_single(value: Any) -> bool:
    """Whether an exact number is also a single precision number."""
    if _is_special(value):
        return True
    try:
        return bool(nearest_single(value) == value)
    except OverflowError:
        return False


def exact_to_double(value: Any) -> float | NotANumber:
    """An exact number in double precision; raises ``OverflowError`` if it is out of range, as PostgreSQL does."""
    return value if isinstance(value, NotANumber) else _in_range(value, float(Decimal(value)))


def exact_to_single(value: Any) -> float | NotANumber:
    """An exact number in single precision; raises ``OverflowError`` if it is out of range, as PostgreSQL does."""
    if _is_special(value):
        return value if isinstance(value, NotANumber) else float(value)
    return _in_range(value, nearest_single(value))


def _in_range(exact: Any, rounded: float) -> float:
    if (math.isinf(rounded) and not _is_special(exact)) or (rounded == 0 and exact != 0):
        raise OverflowError("a number out of the range of its floating-point type")
    return rounded


def exact_arithmetic(operator: str, *, whole: bool) -> Callable[[Any, Any], Any]:
    """``+``, ``-``, ``*``, ``/`` or ``%`` over exact numbers, where only a quotient is rounded, as in PostgreSQL.

    ``whole``: both are integers, so ``/`` truncates. ``%`` has the sign of the dividend. Division by zero raises
    ``ZeroDivisionError``.
    """
    of_numbers = _OF_INTEGERS[operator] if whole else _OF_DECIMALS[operator]

    def calculate(left: Any, right: Any) -> Any:
        if left is NAN or right is NAN:
            return NAN
        if right == 0 and operator in ("/", "%"):
            raise ZeroDivisionError("a division by zero")
        result = of_numbers(left, right)
        return _numeric(result) if isinstance(result, Decimal) else result

    return calculate


def _numeric(result: Decimal) -> Decimal | NotANumber:
    """A result as the server's numeric; raises ``OverflowError`` if it is too long."""
    if result.is_nan():
        return NAN
    if result and result.is_finite() and result.adjusted() >= _MOST_WHOLE_DIGITS:
        raise OverflowError("a number out of the range of numeric")
    return _rounded(result, _MOST_DECIMALS) if _scale(result) > _MOST_DECIMALS else result


def _whole_quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _whole_remainder(left: int, right: int) -> int:
    return left - right * _whole_quotient(left, right)


def _quotient(left: Decimal | int, right: Decimal | int) -> Decimal:
    """PostgreSQL's division of numerics: at least 16 significant digits, and no fewer decimals than an operand."""
    left, right = Decimal(left), Decimal(right)
    if left.is_infinite():
        return Decimal("NaN") if right.is_infinite() else left.copy_negate() if right < 0 else left
    if right.is_infinite():
        return Decimal(0)
    scale = min(max(_quotient_scale(left, right), _scale(left), _scale(right), 0), _MAX_DISPLAY_SCALE)
    divisor = right.copy_abs()
    quotient, remainder = _EXACT.divmod(_EXACT.scaleb(left.copy_abs(), scale), divisor)
    if _EXACT.add(remainder, remainder) >= divisor:
        quotient = _EXACT.add(quotient, Decimal(1))
    result = _EXACT.scaleb(quotient, -scale)
    return result if left.is_signed() == right.is_signed() else result.copy_negate()


def _rounded(value: Decimal, scale: int) -> Decimal:
    """Round to ``scale`` decimals; a half is rounded away from zero."""
    return value.quantize(Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _EXACT)


def _scale(value: Decimal) -> int:
    """The number of decimals; ``as_tuple`` would create an object per digit."""
    return len(format(value, "f").partition(".")[2]) if value.is_finite() else 0


def _quotient_scale(left: Decimal, right: Decimal) -> int:
    """Enough decimals for 16 digits, by PostgreSQL's estimate (``select_div_scale``) in digits of base 10,000."""
    (left_weight, left_digit), (right_weight, right_digit) = _first_digit(left), _first_digit(right)
    weight = left_weight - right_weight - (left_digit <= right_digit)
    return 16 - 4 * weight


def _first_digit(value: Decimal) -> tuple[int, int]:
    """The place and the value of the first digit in base 10,000."""
    if not value:
        return 0, 0
    place = value.adjusted() // 4
    return place, int(_EXACT.scaleb(value.copy_abs(), -4 * place))


def negate(value: Any) -> Any:
    """Negate; the unary minus would round a ``Decimal`` to the thread's context."""
    if value is NAN:
        return NAN
    return value.copy_negate() if isinstance(value, Decimal) else -value


_MAX_DISPLAY_SCALE = 1000
_OF_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
    "/": _whole_quotient,
    "%": _whole_remainder,
}
_OF_DECIMALS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _quotient,
    "%": _EXACT.remainder,
}
