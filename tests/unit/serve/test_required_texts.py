"""The texts that columns must have for a condition to be true: no row without them is shown, and few are judged."""

from random import Random

import pytest

from flushtracker.errors import FlushtrackerError
from flushtracker.serve.on_demand.required_texts import required_texts
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Column, Relation
from tests.support.on_demand_log import BINDING, READ, OrdersLog
from tests.support.on_demand_log import WHOLE as ORDERS
from tests.support.random_ranges import random_condition
from tests.support.seeds import seeds

_INT4, _INT8, _TEXT, _VARCHAR, _BPCHAR, _NUMERIC, _BOOLEAN = 23, 20, 25, 1043, 1042, 1700, 16
_COLUMNS = {"i": _INT4, "l": _INT8, "t": _TEXT, "v": _VARCHAR, "c": _BPCHAR, "n": _NUMERIC, "b": _BOOLEAN, "O d": _TEXT}
_RELATION = Relation(7, "public", "t", "default", tuple(Column(name, oid) for name, oid in _COLUMNS.items()))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("i = 05", {"i": "5"}),
        ("0 = i", {"i": "0"}),
        ("l = -1200", {"l": "-1200"}),
        ("i = 100 AND (b OR t = 'x')", {"i": "100"}),
        ("t = 'x ' AND v = '' AND \"O d\" = 'y'", {"t": "x ", "v": "", "O d": "y"}),
        ("i IN (5)", {"i": "5"}),
        # Equal values of these may have other texts.
        ("c = 'x'", {}),
        ("n = 1", {}),
        ("b = true", {}),
        # These are true for other rows, too.
        ("i = 5 OR t = 'x'", {}),
        ("i IN (5, 6)", {}),
        ("NOT i = 5", {}),
        ("i IS NOT DISTINCT FROM 5", {}),
        ("i + 1 = 5", {}),
        ("lower(t) = 'x'", {}),
        ("i = l", {}),
    ],
)
def test_only_what_each_row_has_for_which_the_condition_is_true(where: str, expected: dict[str, str]) -> None:
    assert dict(required_texts(parse_where(where).canonical(_RELATION), _RELATION)) == expected


@pytest.mark.parametrize("seed", seeds(1, further=2))
def test_no_row_that_matches_lacks_a_text(seed: int) -> None:
    rng, relation = Random(seed), relation_of(BINDING)  # noqa: S311  reproducible
    orders, required = OrdersLog(rng, [ORDERS], "full"), 0
    for _ in range(400):
        orders.transaction()
        try:
            where = parse_where(" AND ".join(random_condition(rng, READ) for _ in range(rng.randint(1, 2))))
            matches = where.bind(relation)
            shown = [row for row in orders.rows.values() if matches(row) is True]
        except FlushtrackerError:  # Some fit no table, or have no outcome for a row.
            continue
        found = required_texts(where.canonical(relation), relation)
        required += bool(found)
        assert all(row[name] == text for row in shown for name, text in found), where
    assert required > 0
