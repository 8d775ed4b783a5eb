"""What a definition on demand shows of its parent's log: the oracle filters the table's rows after each commit."""

import json
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.serve.definitions import Definitions
from flushtracker.serve.on_demand.selected_log import ParentChanges, selected_rows, selected_transactions
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table import row_versions
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.wal.changes import Row
from tests.support.on_demand_log import ORDERS, WHOLE, OrdersLog, order_entries, random_definition, shown
from tests.support.sample_registry import register
from tests.support.shape_log_rows import append

_TRANSACTIONS: Final = 30
_DEFINITIONS: Final = 20
_MOST: Final = 1_000_000


def requested(params: dict[str, str]) -> RequestedDefinition:
    return RequestedDefinition(params["table"], params.get("where"), params.get("columns"), params["replica"])


def has_outcomes(params: dict[str, str], states: list[dict[str, Row]]) -> bool:
    try:
        for rows in states:
            shown(params, rows)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("identity", ["default", "full"])
def test_each_transaction_is_what_the_definition_gains_and_loses(
    log: str, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NULLs, large values that updates omit, changed keys and truncates, from any commit on, whatever old rows have.

    No message has a row that the condition hides at that commit, and none is there for a row that stays as it was.
    """
    rng = Random(identity)  # noqa: S311  reproducible
    world = OrdersLog(rng, [replace(WHOLE, replica=rng.choice(["default", "full"]))], identity)
    register(log, *order_entries(WHOLE))
    append(log, [row for rows in world.snapshots() for row in rows])
    append(log, [row for _ in range(_TRANSACTIONS) for row in world.transaction()])
    reader = ShapeLogReader(log, f"{log}_shapes")
    registry = reader.finder.refresh()
    found = reader.finder.find_rows("orders", None, None, typed=False, even_if_ended=False)
    states = dict(world.at)
    checked = changed = hidden = 0
    for _ in range(_DEFINITIONS):
        params = random_definition(rng)
        if not has_outcomes(params, list(states.values())):
            continue
        target = Definitions(registry, None).target(requested(params), {ORDERS})
        assert target is not None
        if target.selection is None:
            continue
        # Every earlier row is folded, or only the changed ones.
        monkeypatch.setattr(row_versions, "_MOST_HELD", rng.choice([0, 5_000]))
        after = rng.choice([tx for tx in states if tx >= 8])
        copy = shown(params, states[after])
        parent, seen = ParentChanges(reader, found, after), changed
        for tx, messages in selected_transactions(parent, target.selection, after, _MOST, lambda: None):
            assert messages
            was = dict(copy)
            found_messages = [json.loads(each) for each in messages]
            apply(copy, found_messages, shown(params, states[tx]), is_full=params["replica"] == "full")
            assert copy == shown(params, states[tx]), (params, tx)
            assert copy != was, "a transaction that changes nothing is none of the definition's"
            changed += 1
        if parent.show_nothing([target.selection], lambda: None):
            assert changed == seen, "a definition would not be woken by what it shows"
            hidden += 1
        last = max(states)
        assert copy == shown(params, states[last]), params
        rows = [
            row
            for table in selected_rows(reader.row_tables(found), target.selection, lambda: None)
            for row in table.to_pylist()
        ]
        assert {row["key"]: columns_of(row["value"]) for row in rows} == shown(params, states[last])
        checked += 1
    assert checked > _DEFINITIONS // 2
    assert changed > checked
    assert hidden


def apply(copy: dict[str, Row], messages: list[dict[str, Any]], now: dict[str, Row], *, is_full: bool) -> None:
    """Updates of a client that does not ask for full rows have the key and what has changed, and nothing else."""
    for each in messages:
        key, operation, value = each["key"], each["headers"]["operation"], each["value"]
        if operation == "delete":
            assert copy.pop(key) == value, "what is deleted was shown before"
            continue
        assert (key in copy) == (operation == "update")
        if operation == "update" and not is_full:
            was = copy[key]
            assert value.keys() == {name for name in was if name == "id" or was[name] != now[key][name]}
            value = {**was, **value}
        assert value == now[key], "a row that the condition hides, or has otherwise"
        copy[key] = value
