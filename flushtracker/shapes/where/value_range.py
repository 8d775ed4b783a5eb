"""``ValueRange``: an interval of the values of one column, with both its ends."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from flushtracker.shapes.where.number_values import GreaterThanAll
from flushtracker.shapes.where.sql_values import Value


class _Lowest(Enum):
    """Less than every value of any type. An enum, because a pickled copy is the same object."""

    LOWEST = "LOWEST"

    def __lt__(self, other: object) -> bool:
        return other is not self

    def __le__(self, other: object) -> bool:
        return True

    def __gt__(self, other: object) -> bool:
        return False

    def __ge__(self, other: object) -> bool:
        return other is self


class _Highest(GreaterThanAll, Enum):
    """Greater than every value of any type, including NaN."""

    HIGHEST = "HIGHEST"


LOWEST: Final = _Lowest.LOWEST
HIGHEST: Final = _Highest.HIGHEST


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values from ``low`` to ``high``, both included; none if ``low`` is greater.

    An end that the condition excludes (``<``) is still included: the condition itself decides.

    >>> ValueRange(low=5) & ValueRange(high=7)
    ValueRange(low=5, high=7)
    >>> ValueRange(1, 2) | ValueRange(8, 9)
    ValueRange(low=1, high=9)
    """

    low: Value = LOWEST
    high: Value = HIGHEST

    def __and__(self, other: "ValueRange") -> "ValueRange":
        return ValueRange(max(self.low, other.low), min(self.high, other.high))

    def __or__(self, other: "ValueRange") -> "ValueRange":
        """The smallest range that contains both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))

    @property
    def open_ends(self) -> int:
        """How many ends are unbounded; fewer means a more selective range."""
        return (self.low is LOWEST) + (self.high is HIGHEST)


def prefix_range(prefix: str) -> ValueRange:
    r"""A range that contains every text that starts with ``prefix``, in code point order.

    This is not PostgreSQL's order and ignores collations; it is used only to find prefixes.

    >>> prefix_range("ab")
    ValueRange(low='ab', high='ac')
    """
    # The last character that has a successor; those after it are the greatest code point.
    kept = prefix.rstrip("\U0010ffff")
    return ValueRange(prefix, kept[:-1] + chr(ord(kept[-1]) + 1) if kept else HIGHEST)
