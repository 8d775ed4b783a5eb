"""A relation whose old rows lack what shapes must know: each shape equals its query, or ends."""

from random import Random

import pytest

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.item_key import key_text
from flushtracker.wal.changes import Change, Delete, Insert, Row, TransactionFragment, Update
from tests.support.tables import FULL_USERS, USERS, at, transaction

_WHERES = {
    "eu": "region = 'eu'",
    "some us": "region = 'us' AND id < 8",
    "either": "region IN ('eu', 'us') OR id = 3",
    "low": "id < 8",
    "all": None,
}
_JUDGED = {"low", "all"}
"""Those that need no more of old rows than the key."""


def is_in(shape_id: str, row: Row) -> bool:
    """Whether a row is in a shape, by its definition."""
    number, region = int(row["id"] or ""), row["region"]
    return {
        "eu": region == "eu",
        "some us": region == "us" and number < 8,
        "either": region in {"eu", "us"} or number == 3,
        "low": number < 8,
        "all": True,
    }[shape_id]


def random_change(rng: Random, rows: dict[str, Row], *, is_full: bool) -> Change:
    """A change of ``rows``, which it alters, as the server sends it."""
    relation, free = FULL_USERS if is_full else USERS, [str(n) for n in range(1, 60) if str(n) not in rows]
    kind = rng.choice(["insert", "insert", "update", "move", "delete"])
    region = rng.choice(["eu", "us", "asia"])
    if kind == "insert" or not rows:
        new: Row = {"id": rng.choice(free), "region": region, "bio": None}
        rows[new["id"] or ""] = new
        return Insert(relation, at(0), new)
    old = rows.pop(rng.choice(sorted(rows)))
    key = {"id": old["id"]}
    if kind == "delete":
        return Delete(relation, at(0), old if is_full else key)
    new = {**old, "region": region, "id": rng.choice(free) if kind == "move" else old["id"]}
    rows[new["id"] or ""] = new
    sent = old if is_full else key if kind == "move" else None
    return Update(relation, at(0), sent, new)


def failure(router: EventRouter, fragment: TransactionFragment) -> ShapeError | None:
    """Why shapes must end; after that the router is as before, and otherwise the fragment is sent again."""
    try:
        router.route(fragment)
    except ShapeError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(60))
def test_inserts_are_judged_and_what_has_an_old_row_ends_only_shapes_that_must_know_it(seed: int) -> None:
    """The identity changes at random, as when somebody sets that of a new partition."""
    rng = Random(seed)  # noqa: S311  not for secrets
    definitions = [ShapeDefinition(name, USERS.table, where=w, primary_key=("id",)) for name, w in _WHERES.items()]
    router, rows = EventRouter(definitions), dict[str, Row]()
    folds: dict[str, set[str]] = {name: set() for name in _WHERES}
    is_full = False
    for step in range(1, 40):
        is_full = rng.random() < 0.7 if rng.random() < 0.3 else is_full
        change = random_change(rng, rows, is_full=is_full)
        (fragment,) = transaction([change], lsn=step * 1000)
        error = failure(router, fragment)
        if error is not None:
            assert not is_full
            assert isinstance(change, Update | Delete)
            assert set(error.shape_errors) == folds.keys() - _JUDGED
            for shape_id in error.shape_errors:
                router.remove_shape(shape_id)
                del folds[shape_id]
        routed = router.route(fragment)
        router.check_invariants()
        for part in routed:
            for item in part.items:
                if item.operation == "insert":
                    assert item.key not in folds[part.shape_id]
                    folds[part.shape_id].add(item.key or "")
                else:
                    assert item.key in folds[part.shape_id]
                    folds[part.shape_id] -= {item.key} if item.operation == "delete" else set()
        for shape_id, fold in folds.items():
            expected = {key_text(USERS.table, [row["id"]]) for row in rows.values() if is_in(shape_id, row)}
            assert fold == expected, (seed, step, shape_id)
