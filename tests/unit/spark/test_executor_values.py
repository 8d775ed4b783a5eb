"""What executors get by pickle means the same there: conditions, and every object that is compared by identity."""

import pickle
import pkgutil
from functools import partial
from importlib import import_module
from random import Random
from typing import Final, TypeVar

from pyspark import cloudpickle

import flushtracker
from flushtracker.errors import ShapeError
from flushtracker.process.clock import AgeClock
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.wal.changes import Column, Relation, Row, UserType
from tests.support import where_values as own
from tests.support.random_where import COLUMNS, RandomWhere, random_row
from tests.support.seeds import first_seed
from tests.support.where_comparison import outcome_of

_TABLE: Final = "public", "t"
_MOOD: Final = UserType(own.MOOD, "public", "mood", "enum", tuple(own.LABELS))
_TYPES: Final = (
    _MOOD,
    UserType(own.WEATHER, "public", "weather", "enum", tuple(own.VALUES[own.WEATHER])),
    UserType(own.MOODS, "public", "_mood", "array", inner=_MOOD),
    *(UserType(oid, "public", f"d{oid}", "domain", inner=inner) for oid, inner in own.DOMAINS.items()),
)
_RELATION: Final = Relation(1, *_TABLE, "full", tuple(Column(name, oid) for name, oid in COLUMNS.items())).with_types(
    {each.oid: each for each in _TYPES}
)
_ROWS: Final = 30
_CONDITIONS: Final = 150
_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """What an executor gets."""
    copy: _T = pickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]  # noqa: S301  its own
    return copy


def random_joined(rng: Random, rows: list[Row]) -> tuple[str, JoinedCondition]:
    """A condition with a subquery, over columns of the same type, whose rows are added."""
    conditions = RandomWhere(rng)
    while True:
        name = rng.choice(list(COLUMNS))[:-1]
        query = f"{name}1 {rng.choice(['IN', 'NOT IN'])} (SELECT {name}2 FROM public.t WHERE {conditions.condition()})"  # noqa: S608
        text = f"({conditions.condition()}) {rng.choice(['AND', 'OR'])} {query}"
        try:
            joined = parse_where(text).joined(_TABLE, {_TABLE: _RELATION})
        except ShapeError:
            continue
        if all(outcome_of(partial(joined.add, _TABLE), row) == "u" for row in rows):
            joined.settle()
            return text, joined


def test_random_conditions_have_the_same_outcomes_in_another_process() -> None:
    """With the values and the sets of their subqueries, NaN among them, which was no longer equal to itself."""
    seed = first_seed()
    rng = Random(seed)  # noqa: S311  reproducible
    for _ in range(_CONDITIONS):
        rows: list[Row] = [random_row(rng) for _ in range(_ROWS)]
        text, condition = random_joined(rng, rows[: _ROWS // 2])
        copy = copied(condition)
        for row in rows:
            found, expected = outcome_of(copy.matches, row), outcome_of(condition.matches, row)
            assert found == expected, f"seed {seed}, {text}, row {row}"


def test_a_constant_equals_its_copy_in_another_process() -> None:
    """One that is equal to nothing but itself, such as ``object()``, would differ there."""
    names = [each.name for each in pkgutil.walk_packages(flushtracker.__path__, "flushtracker.")]
    modules = [import_module(name) for name in names if not name.endswith("__main__")]
    found = {id(each): each for module in modules for each in vars(module).values() if is_ours(type(each))}
    assert len(found) > 10
    assert [each for each in found.values() if copied(each) != each] == []


def is_ours(kind: type) -> bool:
    """A clock is of its process: it dates what that process writes, and is never compared."""
    if kind is AgeClock:
        return False
    return kind is object or (kind.__module__.startswith("flushtracker.") and not issubclass(kind, type))
