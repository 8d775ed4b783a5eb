"""``flushtracker verify``: the tables of a recording, and a log that differs from them."""

from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.trials.recordings.recording import RecordedMessage, read_recording
from flushtracker.trials.recordings.verify import RecordedTables, differences
from flushtracker.trials.recordings.verify_program import run
from flushtracker.wal.changes import Column, Relation
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import decode
from tests.support.key_bindings import ID_KEY
from tests.support.recorded_workload import PUBLISHED, RECORDING
from tests.support.sample_registry import register
from tests.support.shape_log_rows import SOURCE, append, commit, item
from tests.support.truth import Row, TruthChange, read_truth


@pytest.fixture(scope="module")
def frames() -> list[RecordedMessage]:
    return list(read_recording(RECORDING))


@pytest.fixture(scope="module")
def tables(frames: list[RecordedMessage]) -> RecordedTables:
    return RecordedTables(frames)


def keys_of(frames: list[RecordedMessage]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The key columns of each table."""
    converter = FragmentConverter()
    fragments = (fragment for frame in frames for fragment in converter.handle(decode(frame.data)))
    return {change.relation.table: change.relation.key_columns for fragment in fragments for change in fragment.changes}


def apply(rows: list[Row], change: TruthChange, key: tuple[str, ...]) -> None:
    """One change to a table that is a list, by ``test_decoding``'s text."""
    if change.operation == "truncate":
        rows.clear()
        return
    old: Row | None = None
    if change.operation != "insert":
        named = change.old or {name: (change.new or {})[name] for name in key}
        (old,) = (row for row in rows if all(row[name] == text for name, text in named.items()))
        rows.remove(old)
    if change.new is not None:
        rows.append({**(old or {}), **change.new})


def test_recorded_tables_are_those_of_postgresqls_own_reading(
    frames: list[RecordedMessage], tables: RecordedTables
) -> None:
    """Every table at the end of the recording, row by row, against ``test_decoding``."""
    keys, found = keys_of(frames), defaultdict[tuple[str, str], list[Row]](list)
    for transaction in read_truth(RECORDING / "truth.txt.gz"):
        for change in transaction.changes:
            if change.table in PUBLISHED:
                apply(found[change.table], change, keys[change.table])
    assert sum(map(len, found.values())) > 1000
    for table in PUBLISHED:
        have = tables.rows_of(ShapeDefinition("s", table))
        assert sorted(map(sorted_items, have)) == sorted(map(sorted_items, found[table])), table


def sorted_items(row: Any) -> list[tuple[str, str]]:
    return sorted((name, repr(text)) for name, text in row.items())


def test_shape_of_chosen_rows_and_columns_is_the_query_over_its_table(tables: RecordedTables) -> None:
    """What ``where`` refuses is left out, and so is what it cannot decide."""
    everything = tables.rows_of(ShapeDefinition("s", ("public", "users")))
    found = tables.rows_of(ShapeDefinition("s", ("public", "users"), ("id",), "id % 2 = 0"))
    assert 0 < len(found) < len(everything)
    assert sorted(row["id"] or "" for row in found) == sorted(
        row["id"] or "" for row in everything if int(row["id"] or 1) % 2 == 0
    )
    assert {*found[0]} == {"id"}


def test_a_table_of_a_subquery_that_never_changed_has_no_rows(frames: list[RecordedMessage]) -> None:
    """Its columns are known by the registry; without it the shape cannot be judged."""
    rows = RecordedTables(frames).rows_of(ShapeDefinition("s", ("public", "users"), ("id",)))
    quiet = Relation(77, "public", "quiet", "default", (Column("id", 23, is_key=True),))
    tables = RecordedTables(frames, {quiet.table: quiet})
    query = "(SELECT id FROM public.quiet)"
    for where, expected in ((f"id IN {query}", []), (f"id NOT IN {query}", rows), (f"NOT id IN {query}", rows)):
        shape = ShapeDefinition("s", ("public", "users"), ("id",), where)
        assert tables.rows_of(shape) == expected
        with pytest.raises(ShapeError, match=r"reads table public\.quiet, whose columns are not known"):
            RecordedTables(frames).rows_of(shape)
    assert rows


def test_change_of_a_row_that_was_there_before_the_recording_is_an_error(frames: list[RecordedMessage]) -> None:
    """It says what is wrong with the recording; it was a KeyError."""
    first = next(number for number, frame in enumerate(frames) if frame.data[:1] in {b"D", b"U"})
    inserts = [frame for number, frame in enumerate(frames) if frame.data[:1] != b"I" or number > first]
    with pytest.raises(DecodeError, match=r"^table public\.\w+ had rows before the recording began, which changes one"):
        RecordedTables(inserts)


USERS = ShapeDefinition("users", ("public", "users"))


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The rows 1 to 3."""
    path = str(tmp_path / "log")
    create_shape_log(path)
    rows = [item((1000, 2 * n), "insert", f"k{n}", {"id": str(n), "name": f"n{n}"}) for n in (1, 2, 3)]
    append(path, [*rows, commit(1000)])
    return path


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        ([1, 2, 3], None),
        ([3, 1, 2], None),
        ([1, 2, 3, 4, 5], "the log lacks 2 rows, such as {'id': '4', 'name': 'n4'}"),
        ([1, 1, 2, 3], "the log lacks 1 rows, such as {'id': '1', 'name': 'n1'}"),
        ([3], "the log has, and the table does not, 2 rows, such as {'id': '1', 'name': 'n1'}"),
        ([], "the log has 3 rows that the table does not have"),
    ],
)
def test_difference_names_the_shape_the_number_of_rows_and_one_of_them(
    log: str, expected: list[int], difference: str | None
) -> None:
    """In either direction, also where a row is there twice."""
    rows = [{"id": str(n), "name": f"n{n}"} for n in expected]
    found = list(differences(ShapeLogReader(log), {"users": USERS}, lambda _: list(rows)))
    assert found == [("users", len(expected), difference)]


def test_changed_value_and_null_are_differences(log: str) -> None:
    """A value that is wrong in one column only."""
    rows: list[dict[str, str | None]] = [
        {"id": "1", "name": "n1"},
        {"id": "2", "name": None},
        {"id": "3", "name": "n3"},
    ]
    ((_, _, found),) = differences(ShapeLogReader(log), {"users": USERS}, lambda _: list(rows))
    assert found == "the log lacks 1 rows, such as {'id': '2', 'name': None}"


def test_program_knows_tables_without_changes_by_the_registry_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that subqueries read; the recording has no rows of this one, and so the shape has none."""
    path, shapes = str(tmp_path / "log"), tmp_path / "shapes.yaml"
    create_shape_log(path)
    append(path, [commit(1000)])
    where, columns = "id IN (SELECT id FROM public.quiet)", (ColumnBinding(1, "id", 23, -1, 0),)
    names = (("public", "users"), ("public", "quiet"))
    tables = [TableEntry(SOURCE, TableBinding(oid, name, ID_KEY, columns)) for oid, name in enumerate(names, 1)]
    shape = ShapeDefinition(
        *("users", names[0], ("id",), where), primary_key=("id",), inner_tables=(InnerTable(names[1], 2, ("id",)),)
    )
    register(path, *tables, ShapeEntry(SOURCE, shape, 1, LogOffset(9, 0)))
    shapes.write_text(f'shapes: [{{id: users, table: public.users, columns: [id], where: "{where}"}}]\n')
    assert run(Namespace(shapes=shapes, recording=RECORDING, log=path)) == 0
    assert capsys.readouterr().out.startswith("1 shapes: folding each log gives its query over the table, 0 rows")


def test_program_exits_with_1_and_names_each_shape_that_differs(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recording's users are not those of this log."""
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("shapes:\n  - id: users\n    table: public.users\n")
    code = run(Namespace(shapes=shapes, recording=RECORDING, log=log))
    output = capsys.readouterr().out
    assert code == 1
    assert output.startswith("shape users differs: the log lacks ")
    assert "folding each log gives" not in output
