"""Shapes with subqueries over HTTP: a client keeps the rows of the query, by inserts, updates and deletes alone."""

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.folded_log import folded
from tests.support.joined_history import SCHEMA, random_case
from tests.support.joined_log import Answer, entries, played
from tests.support.sample_registry import register
from tests.support.serve_client import Client, Server, config_of, serving
from tests.support.shape_log_rows import SOURCE, append, commit, item, snapshot_rows

_TRANSACTIONS: Final = 12
TASK: Final = '"main"."tasks"/*/"{}"'
PROJECT: Final = '"main"."projects"/*/"{}"'
SHAPE: Final = ShapeDefinition(
    "shape",
    (SCHEMA, "tasks"),
    columns=("id", "b"),
    where="a IN (SELECT id FROM main.projects WHERE a = 7)",
    primary_key=("id",),
    inner_tables=(InnerTable((SCHEMA, "projects"), 2, ("id",)),),
)


def change(log: str, tx: int, operation: str, key: str, value: dict[str, str | None] | None = None) -> None:
    """Append a transaction of one change."""
    append(log, [item((tx, 0), operation, key, value, shape_id="shape"), commit(tx, shape_id="shape")])


def operations(messages: list[dict[str, Any]]) -> list[tuple[str, str, str, list[int]]]:
    """Operation, key, LSN and xids of each message that is a change."""
    found = [each for each in messages if "operation" in each["headers"]]
    return [(h["operation"], each["key"], h["lsn"], h["txids"]) for each in found for h in [each["headers"]]]


async def test_rows_enter_and_leave_with_the_transactions_of_another_table(log: str) -> None:
    """At their offsets; the client gets no row of that table, and no column that only the condition needs."""
    task: dict[str, str | None] = {"id": "1", "a": "5", "b": "8"}
    change(log, 16, "insert", TASK.format(1), task)
    register(log, *entries([SHAPE]))
    async with serving(log) as server:
        client = Client({"shape": "shape"})
        await client.sync(server)
        assert (client.rows, client.tx) == ({}, 16)
        change(log, 24, "insert", PROJECT.format(5), {"id": "5", "a": "7"})
        found = await client.step(server, live=True)
        assert operations(found.json) == [("insert", TASK.format(1), "24", [24])]
        assert client.rows == {TASK.format(1): {"id": "1", "b": "8"}}
        change(log, 32, "update", TASK.format(1), {"id": "1", "b": "9"})
        found = await client.step(server, live=True)
        assert operations(found.json) == [("update", TASK.format(1), "32", [32])]
        assert "old_value" not in found.json[0]
        assert client.rows == {TASK.format(1): {"id": "1", "b": "9"}}
        change(log, 40, "truncate_partition", '"main"."projects"/*')
        found = await client.step(server, live=True)
        assert operations(found.json) == [("delete", TASK.format(1), "40", [40])]
        assert (client.rows, client.tx, client.conflicts) == ({}, 40, 0)


async def test_a_change_of_the_log_that_is_none_of_the_query_is_no_message(log: str) -> None:
    """The client's offset moves on. Each transaction has its own changes, at its offset, whenever a server looks."""
    change(log, 16, "insert", TASK.format(1), {"id": "1", "a": "5", "b": "8"})
    register(log, *entries([SHAPE]))
    async with serving(log) as server:
        client = Client({"shape": "shape"})
        await client.sync(server)
        change(log, 24, "insert", PROJECT.format(6), {"id": "6", "a": "7"})
        found = await client.step(server, live=True)
        assert operations(found.json) == []
        assert client.tx == 24
    change(log, 32, "insert", PROJECT.format(5), {"id": "5", "a": "7"})
    change(log, 40, "insert", TASK.format(2), {"id": "2", "a": "6", "b": None})
    async with serving(log) as server:
        found = await client.step(server)
        expected = [("insert", TASK.format(number), tx, [int(tx)]) for number, tx in ((1, "32"), (2, "40"))]
        assert operations(found.json) == expected


async def test_a_client_without_the_rows_waits_for_the_snapshot(log: str) -> None:
    """Until then the rows of other tables are not known, so a change might be taken for one of the query's."""
    change(log, 16, "insert", TASK.format(1), {"id": "1", "a": "5", "b": "8"})
    excluded = replace(SHAPE, where="a NOT IN (SELECT id FROM main.projects WHERE a = 7)", snapshot=True)
    register(log, *entries([excluded]))
    async with serving(log) as server:
        for asked in ({"offset": "now"}, {"offset": "-1", "log": "changes_only"}):
            response = await server.get({"shape": "shape", **asked})
            assert (response.status, response.headers["retry-after"]) == (503, "5")
        snapshot = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), lsn=8, next_xid=1)
        rows: dict[str, dict[str, str | None]] = {
            PROJECT.format(5): {"id": "5", "a": "7"},
            PROJECT.format(6): {"id": "6", "a": "8"},
        }
        append(log, snapshot_rows(snapshot, rows, shape_id="shape"))
        await server.served.parts.poller.current(fresh=True)
        begun = await server.get({"shape": "shape", "offset": "now"})
        change(log, 24, "insert", TASK.format(2), {"id": "2", "a": "5", "b": "8"})
        change(log, 32, "insert", TASK.format(3), {"id": "3", "a": "6", "b": "8"})
        await server.served.parts.poller.current(fresh=True)
        place = {"offset": begun.headers["electric-offset"], "handle": begun.headers["electric-handle"]}
        found = await server.get({"shape": "shape", **place})
        assert [each["key"] for each in found.json if "key" in each] == [TASK.format(3)]


async def test_a_log_of_several_tables_is_not_sent_as_it_is(log: str) -> None:
    """The registry may lack the definition, as of a source whose entries were lost; then nobody gets any of it."""
    change(log, 16, "insert", PROJECT.format(5), {"id": "5", "a": "7"})
    register(log, *(replace(each, source="another") for each in entries([SHAPE])))
    server = Server(config_of(log, source=SOURCE))
    server.served.parts.poller.start()
    begun = await server.get({"shape": "shape", "offset": "now"})
    change(log, 24, "insert", PROJECT.format(6), {"id": "6", "a": "7"})
    await server.served.parts.poller.current(fresh=True)
    place = {"offset": begun.headers["electric-offset"], "handle": begun.headers["electric-handle"]}
    for asked in (place, {"offset": "-1"}):
        found = await server.get({"shape": "shape", **asked})
        assert (found.status, b"projects" in found.body) in {(404, False), (422, False)}
    server.served.close()


async def test_a_moment_without_an_outcome_is_left_out_by_beginning_again(log: str) -> None:
    """The condition divides by zero for a while. What the shape had meanwhile is unknown; what it has now is known."""
    shape = replace(SHAPE, columns=None, where="id IN (SELECT id FROM main.projects) OR a / b = 5")
    register(log, *entries([shape]))
    change(log, 16, "insert", TASK.format(1), {"id": "1", "a": "5", "b": "1"})
    async with serving(log) as server:
        client = Client({"shape": "shape"})
        await client.sync(server)
        change(log, 24, "update", TASK.format(1), {"id": "1", "b": "0"})
        change(log, 32, "update", TASK.format(1), {"id": "1", "a": "10", "b": "2"})
        await server.served.parts.poller.current(fresh=True)
        await client.sync(server)
        assert (client.conflicts, client.rows) == (1, {TASK.format(1): {"id": "1", "a": "10", "b": "2"}})


async def test_a_row_without_an_outcome_is_named_as_a_reason_until_it_is_changed(log: str) -> None:
    """A client that begins meanwhile is refused; the message has no word of the row, but the server's log has one."""
    register(log, *entries([replace(SHAPE, where="id IN (SELECT id FROM main.projects) OR a / b = 5")]))
    change(log, 16, "insert", TASK.format(1), {"id": "1", "a": "5", "b": "0"})
    async with serving(log) as server:
        found = await server.get({"shape": "shape", "offset": "-1"})
        assert found.status == 422
        assert "or a condition has no outcome for a row" in str(found.json["message"])
        change(log, 24, "update", TASK.format(1), {"id": "1", "b": "1"})
        await server.served.parts.poller.current(fresh=True)
        client = Client({"shape": "shape"})
        await client.sync(server)
        assert client.rows == {TASK.format(1): {"id": "1", "b": "1"}}


@pytest.mark.parametrize("seed", range(4))
async def test_each_transaction_of_a_random_shape_has_the_changes_of_its_query(log: str, seed: int) -> None:
    """Whichever server looks when: one that sees each transaction at once, one that sees all together, and one that
    sees them when the history is folded up to the middle. A client is never told to begin again, and after each
    transaction it has what the query had there.
    """
    rng = Random(seed)  # noqa: S311  reproducible
    world, definitions = random_case(rng, shapes=2)
    definitions = [replace(each, replica=rng.choice(["default", "full"])) for each in definitions]
    answers = dict(played(log, world, definitions, 1))
    register(log, *entries(definitions))
    clients = {each.id: Client({"shape": each.id}) for each in definitions}
    begun, sent, offsets = dict[str, Client](), dict[str, list[dict[str, Any]]](), dict[tuple[str, int], str]()
    async with serving(log) as eager:
        for shape_id, client in clients.items():
            await client.sync(eager)
            begun[shape_id], sent[shape_id] = replace(client, rows=dict(client.rows)), []
        for _ in range(_TRANSACTIONS):
            answers.update(played(log, world, definitions, 1))
            await eager.served.parts.poller.current(fresh=True)
            for shape_id, client in clients.items():
                sent[shape_id] += await _changes(eager, client)
                offsets[shape_id, max(answers)] = client.offset
    async with serving(log) as late:
        for shape_id, client in begun.items():
            assert await _changes(late, replace(client)) == sent[shape_id]
            for tx, expected in answers.items():
                for each in [each for each in sent[shape_id] if int(each["headers"]["lsn"]) == tx]:
                    assert ("old_value" in each) <= (each["headers"]["operation"] == "update")
                    client._apply(each)
                assert tx < client.tx or answer_of(client) == [tuple(row) for row in expected[shape_id]]
    middle = sorted(answers)[_TRANSACTIONS // 2]
    assert folded(log, 0, middle + 1)
    async with serving(log) as later:
        for shape_id, client in begun.items():
            changes = await _changes(later, replace(client, offset=offsets[shape_id, middle]))
            assert changes == [each for each in sent[shape_id] if int(each["headers"]["lsn"]) > middle]
    assert any(sent.values())


async def _changes(server: Server, client: Client) -> list[dict[str, Any]]:
    """All changes since the client's offset."""
    response = await server.get(client.query(live=False))
    assert (response.status, "electric-up-to-date" in response.headers) == (200, True)
    client.offset = response.headers["electric-offset"]
    return [each for each in response.json if "operation" in each["headers"]]


def answer_of(client: Client) -> Answer:
    """The client's rows as texts."""
    return sorted([tuple(row.values()) for row in client.rows.values()], key=repr)
