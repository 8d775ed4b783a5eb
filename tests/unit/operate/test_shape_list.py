"""``flushtracker shapes``: each shape with its state; and ``read`` of an unknown shape, which names the known ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import register, shape_entry, table_entry, taken, wanted_entry
from tests.support.shape_log_rows import append, commit, item, snapshot_rows

_END = LogOffset(50, 0)


def entry(shape_id: str, writer: str = "log", **changed: object) -> ShapeEntry:
    found = shape_entry(shape_id)
    return replace(found, definition=replace(found.definition, snapshot=False, writer=writer), **changed)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Shapes in every state, of which two have rows."""
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    wanted = wanted_entry()
    register(
        uri,
        table_entry(),
        entry("orders"),
        entry("quiet"),
        replace(wanted, definition=replace(wanted.definition, id="waiting")),
        replace(wanted, definition=replace(wanted.definition, id="snapped")),
        entry("others", writer="own"),
        entry("gone", removed_at=_END),
        entry("altered", removed_at=_END, ended_because="column a was dropped"),
        entry("slow", removed_at=_END, ended_because="it held the slot", evicted_at_ms=7),
        entry("again", removed_at=_END, ended_because=BEGUN_AGAIN),
    )
    append(uri, [item((10, 0), "insert", "k", {"id": "1"}, shape_id="orders"), commit(10, shape_id="orders")])
    append(uri, [item((12, 0), "insert", "l", {"id": "2"}, shape_id="orders"), commit(12, shape_id="orders")])
    append(uri, [item((14, 0), "delete", "k", None, shape_id="orders")])
    append(uri, snapshot_rows(taken(3, "20:20:", 20), {"k": {"id": "1"}}, shape_id="snapped"))
    return uri


def test_each_state_of_a_shape_is_listed(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What its owner has removed only on request; a transaction that is not whole yet does not count."""
    assert main(["shapes", "--log", log]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split("  ")[0] == "shape"
    assert [line.split() for line in shown[1:9]] == [
        ["again", "public.users", "begins", "again", "-", "-", "-", "-", "log"],
        ["altered", "public.users", "ended", "-", "-", "-", "-", "log"],
        ["orders", "public.users", "live", "2", "0/C", "2026-01-02", "03:04:05Z", "0.0", "s", "log"],
        ["others", "public.users", "live", "-", "-", "-", "-", "own"],
        ["quiet", "public.users", "live", "0", "-", "-", "-", "log"],
        ["slow", "public.users", "evicted", "-", "-", "-", "-", "log"],
        ["snapped", "public.users", "live", "1", "-", "-", "-", "log"],
        ["waiting", "public.users", "no", "snapshot", "yet", "-", "-", "-", "-", "log"],
    ]
    assert "altered: ended: column a was dropped" in shown
    assert "slow: evicted: it held the slot" in shown
    assert any(line.startswith("waiting: no snapshot yet: shape waiting of source") for line in shown)
    assert main(["shapes", "--log", log, "--all"]) == 0
    assert "gone" in capsys.readouterr().out


def test_the_list_is_also_json(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shapes", "--log", log, "--format", "jsonl"]) == 0
    found = {each["shape_id"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["orders"] | {"committed_at": None} == {
        "source": "7301/1/shapes",
        "shape_id": "orders",
        "table": "public.users",
        "state": "live",
        "writer": "log",
        "reason": None,
        "rows": 2,
        "lsn": "0/C",
        "committed_at": None,
        "lag_s": 0.0,
    }


def test_a_shape_that_does_not_exist_is_told_from_those_that_do(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The near ones, else all; neither what has ended nor what another writer has."""
    for asked, hint in (
        (["order"], "has no shape order; check its id, and whether it is written; did you mean orders?"),
        (
            ["nope"],
            "has no shape nope; check its id, and whether it is written; it has orders, quiet, snapped, waiting",
        ),
        (["orders", "nope"], "it has orders, quiet, snapped, waiting"),
    ):
        assert main(["read", *asked, "--log", log]) == 2
        assert hint in capsys.readouterr().err
    assert main(["read", "altered", "--log", log]) == 2
    assert "it has orders" not in capsys.readouterr().err


def test_without_a_registry_there_is_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a read says what it said before."""
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    assert main(["shapes", "--log", uri]) == 2
    assert "has no registry table beside it, which has the shapes; name it" in capsys.readouterr().err
    assert main(["read", "nope", "--log", uri]) == 2
    assert capsys.readouterr().err.endswith("has no shape nope; check its id, and whether it is written\n")
