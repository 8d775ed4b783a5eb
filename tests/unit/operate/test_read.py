"""``flushtracker read``: what it prints, as it is written, and how it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import PositionError, ShapeEndedError, SnapshotMissingError
from flushtracker.events.registry_events import BEGUN_AGAIN
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table import external_sort
from flushtracker.shape_log.table.cut_log import CutLog
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import register, shape_entry, table_entry, taken, wanted_entry
from tests.support.shape_log_rows import SOURCE, append, commit, item, snapshot_rows


@pytest.fixture
def log(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    append(uri, [item((10, 0), "insert", "k", {"id": "1", "note": 'a,"b"\n'}), commit(10)])
    append(uri, [item((12, 0), "insert", "l", {"id": "2", "note": None}), commit(12)])
    return uri


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["read", "users", *arguments]) == 0
    return capsys.readouterr().out


def test_rows_are_printed_in_each_format(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """NULL differs from an empty text, and a value cannot forge a line of the table."""
    assert printed(capsys, "--log", log) == 'id  note\n1   a,"b"\\n\n2   NULL\n'
    assert printed(capsys, "--log", log, "--format", "csv") == 'id,note\r\n1,"a,""b""\n"\r\n2,\r\n'
    assert printed(capsys, "--log", log, "--format", "jsonl", "--at", "0/A+inf") == '{"id":"1","note":"a,\\"b\\"\\n"}\n'


def test_several_shapes_are_printed_as_of_one_moment(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its heading, or in each line."""
    definition = replace(shape_entry("more").definition, snapshot=False)
    register(log, *(replace(shape_entry(), definition=replace(definition, id=each)) for each in ("users", "more")))
    append(log, [item((12, 0), "insert", "m", {"id": "9"}, shape_id="more"), commit(12, shape_id="more")])
    assert main(["read", "users", "more", "--log", log]) == 2
    assert "has no cut of source 7301/1/shapes" in capsys.readouterr().err
    CutLog(log, RegistryTable(f"{log}_shapes")).note({SOURCE: 11})
    assert main(["read", "users", "more", "--log", log]) == 0
    out, err = capsys.readouterr()
    assert out == 'users:\nid  note\n1   a,"b"\\n\nmore:\n\n'
    assert "shape more of source 7301/1/shapes: 0 rows, as of 0/B; position" in err
    CutLog(log, RegistryTable(f"{log}_shapes")).note({SOURCE: 12})
    assert printed(capsys, "more", "--log", log, "--format", "jsonl").splitlines()[1:] == [
        '{"shape_id":"users","row":{"id":"2","note":null}}',
        '{"shape_id":"more","row":{"id":"9"}}',
    ]
    for option in (["--follow"], ["--log-rows"], ["--at", "0/A+inf"], ["--format", "csv"]):
        with pytest.raises(SystemExit):
            main(["read", "users", "more", "--log", log, *option])
        assert "several shapes are only printed as rows" in capsys.readouterr().err


def test_rows_are_printed_as_they_come(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time, with one header; a column of the table gets wider where a later row needs it."""
    formats = ("csv", "jsonl")
    whole = [
        printed(capsys, "--log", log, *rest, "--format", each) for each in formats for rest in ([], ["--log-rows"])
    ]
    append(log, [item((14, 0), "insert", "m", {"id": "1,000,000", "note": "b"}), commit(14)])
    monkeypatch.setattr(external_sort, "ROWS", 1)
    assert main(["read", "users", "--log", log]) == 0
    found = capsys.readouterr()
    assert found.out == 'id  note\n1   a,"b"\\n\n2   NULL\n1,000,000  b\n'
    assert "3 rows, up to 0/E+inf" in found.err
    append(log, [item((16, 0), "delete", "m"), commit(16)])
    parts = [
        printed(capsys, "--log", log, *rest, "--format", each) for each in formats for rest in ([], ["--log-rows"])
    ]
    assert [part.startswith(each) for part, each in zip(parts, whole, strict=True)] == [True] * 4
    assert [part == each for part, each in zip(parts, whole, strict=True)] == [True, False, True, False]


def test_typed_values_are_printed_as_json_has_them(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers as numbers; what JSON lacks, as text."""
    append(log, [item((14, 0), "insert", "m", {"id": "3", "price": "1.50", "paid": "t", "data": "\\x00"}), commit(14)])
    register(log, shape_entry(), table_entry())
    last = printed(capsys, "--log", log, "--format", "jsonl", "--typed").splitlines()[-1]
    assert last == '{"id":3,"price":"1.50","paid":true,"day":null,"at":null,"data":"\\\\x00","note":null}'


def position_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The position that a read prints on stderr, at the end of its line."""
    assert main(["read", "users", *arguments]) == 0
    return capsys.readouterr().err.splitlines()[-1].rpartition("; position ")[2]


def test_log_is_printed_after_a_printed_position(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With offsets as other messages have them, and values as JSON."""
    after = position_of(capsys, "--log", log, "--at", "0/A+inf")
    assert after == f"1:0/A:0:{SOURCE}"
    lines = printed(capsys, "--log", log, "--log-rows", "--after", after, "--format", "jsonl").splitlines()
    facts = '"old_value":null,"xid":12,"commit_timestamp":'
    assert lines == [
        '{"offset":"0/C+0","operation":"insert","key":"l","value":{"id":"2","note":null},' + facts + 'null,"chunk":0}',
        '{"offset":"0/C+inf","operation":"commit","key":null,"value":null,'
        + facts
        + '"2026-01-02T03:04:05+00:00","chunk":0}',
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--at", "0/A+inf", "--follow"], "--at is only valid without --follow and --log-rows"),
        (["--after", "1:0/A:0:a"], "--after is only valid with --log-rows and without --changes"),
        (["--log-rows", "--changes", "--after", "1:0/A:0:a"], "--after is only valid with --log-rows and without"),
        (["--changes"], "--changes is only valid with --log-rows"),
        (["--log-rows", "--after", "0/A+inf"], "position '0/A+inf' is not of the form 1:LSN:ATTEMPT:SOURCE; continue"),
        (["--typed", "--log-rows"], "--typed is only valid without --log-rows"),
        (["--at", "10"], "offset '10' is not of the form 16/B374D848+5"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    arguments: Sequence[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, before anything is read."""
    with pytest.raises(SystemExit) as exited:
        main(["read", "users", "--log", "nowhere", *arguments])
    assert exited.value.code == 2
    assert problem in capsys.readouterr().err


def start(log: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flushtracker", "read", "users", "--log", log, "--format", "jsonl", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines; the test's deadline is the test run's."""
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_follower_prints_what_is_written_and_ends_on_ctrl_c(log: str) -> None:
    """Each row once, in order, without a transaction's part."""
    with start(log, "--log-rows", "--follow") as process:
        assert [line[:18] for line in lines(process, 4)] == [
            '{"offset":"0/A+0",',
            *(f'{{"offset":"0/{offset}'[:18] for offset in ('A+inf",', 'C+0",', 'C+inf",')),
        ]
        append(log, [item((14, 0), "insert", "m", {"id": "3"})])
        append(log, [item((14, 2), "insert", "n", {"id": "4"}), commit(14)])
        assert [line[11:18] for line in lines(process, 3)] == ['0/E+0",', '0/E+2",', "0/E+inf"]
        assert process.stderr is not None
        # How far follows the rows; before it, Ctrl-C ends the program without.
        assert any(f"up to 0/E+inf; position 1:0/E:0:{SOURCE}\n" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_follower_prints_the_rest_of_a_shape_that_ends(log: str) -> None:
    """And exits with the reason."""
    RegistryTable(f"{log}_shapes", create=True)
    register(log, shape_entry())
    with start(log, "--follow") as process:
        assert len(lines(process, 2)) == 2
        append(log, [item((14, 0), "insert", "m", {"id": "3"}), commit(14)])
        register(log, shape_entry(removed_at=LogOffset(14, 0), ended_because="its table was dropped"))
        rest, messages = process.communicate()
    assert process.returncode == ShapeEndedError.exit_code
    assert rest.splitlines()[-1] == '{"id":"3","note":null}'
    assert "has ended because its table was dropped, at 0/E+0; " in messages.splitlines()[-1]


def test_reader_of_the_output_may_leave(log: str) -> None:
    """As `head` does; that is no error."""
    append(log, [item((14, 2 * n), "insert", f"k{n}", {"id": "x" * 100}) for n in range(5000)])
    append(log, [commit(14)])
    with start(log) as process:
        assert lines(process, 1) != [""]
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        messages = process.stderr.read()
    assert (process.returncode, messages) == (0, "")


def test_follower_goes_on_with_the_log_when_a_snapshot_is_taken_again(log: str) -> None:
    """What the new one has of later transactions is missing from the log, and the follower gets the difference."""
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"h": {"id": "0"}}))
    with start(log, "--log-rows", "--follow") as process:
        assert ['"snapshot"' in line for line in lines(process, 6)] == [False, True, *[False] * 4]
        append(log, snapshot_rows(taken(2, "13:13:", 13), {"h": {"id": "0"}, "l": {"id": "2", "note": "x"}}))
        changes = [json.loads(line) for line in lines(process, 3)]
        append(log, [item((14, 0), "insert", "m", {"id": "3"}), commit(14)])
        changes += [json.loads(line) for line in lines(process, 2)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert [(row["offset"], row["operation"], row["key"]) for row in changes] == [
        *(("0/D+0", "delete", "k"), ("0/D+1", "update", "l"), ("0/D+inf", "commit", None)),
        *(("0/E+0", "insert", "m"), ("0/E+inf", "commit", None)),
    ]


def test_a_follower_waits_for_the_snapshot_of_a_shape_that_begins_again(log: str) -> None:
    """It says so once, and then gets the difference, and what follows. A command that does not follow ends."""
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"h": {"id": "0"}}))
    with start(log, "--log-rows", "--follow") as process:
        assert len(lines(process, 6)) == 6
        append(log, snapshot_rows(ShapeSnapshot.mark(2, 2), {}))
        assert process.stderr is not None
        waiting = next(line for line in process.stderr if "waiting" in line)
        assert "was begun again (incarnation 2) and has no snapshot since; run flushtracker snapshot" in waiting
        begun = replace(taken(3, "17:17:", 20), incarnation=2, starts_after=15)
        append(log, snapshot_rows(begun, {"h": {"id": "0"}, "k": {"id": "7"}}))
        append(log, [item((22, 0), "insert", "m", {"id": "3"}), commit(22)])
        changes = [json.loads(line) for line in lines(process, 5)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert [(row["offset"], row["operation"], row["key"]) for row in changes] == [
        *(("0/D+0", "delete", "k"), ("0/D+1", "delete", "l"), ("0/D+2", "insert", "k")),
        *(("0/D+inf", "commit", None), ("0/16+0", "insert", "m")),
    ]


def test_a_follower_waits_between_the_two_entries_of_a_shape_that_is_resynced(log: str) -> None:
    """The live shape ends, and its next incarnation is added, in two entries, and both may be seen alone."""
    wanted = wanted_entry()
    register(log, wanted)
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"h": {"id": "0"}}))
    with start(log, "--log-rows", "--follow") as process:
        assert len(lines(process, 6)) == 6
        register(log, replace(wanted, removed_at=LogOffset(15, 0), ended_because=BEGUN_AGAIN))
        assert process.stderr is not None
        waiting = next(line for line in process.stderr if "waiting" in line)
        assert "begins again, and has no snapshot since; run flushtracker snapshot" in waiting
        definition = replace(wanted.definition, incarnation=2)
        register(log, replace(wanted, definition=definition, starts_after=LogOffset(15, 0)))
        append(log, snapshot_rows(replace(taken(3, "17:17:", 20), incarnation=2, starts_after=15), {}))
        changes = [json.loads(line) for line in lines(process, 4)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert [row["operation"] for row in changes] == ["delete", "delete", "delete", "commit"]


def test_a_command_that_continues_after_a_snapshot_was_taken_again_prints_the_difference(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An insert and a delete since are in the new snapshot, and nowhere else; the position tells that."""
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"h": {"id": "0"}}))
    after = position_of(capsys, "--log", log, "--log-rows")
    append(log, [item((14, 0), "insert", "m", {"id": "3"}), item((14, 2), "delete", "k", {"id": "1"}), commit(14)])
    append(log, snapshot_rows(taken(2, "15:15:", 20), {"l": {"id": "2"}, "m": {"id": "3"}}))
    assert main(["read", "users", "--log", log, "--log-rows", "--after", after, "--format", "csv"]) == 0
    output = capsys.readouterr()
    assert [line.split(",")[:2] for line in output.out.splitlines()[1:]] == [
        *(["0/E+0", "delete"], ["0/E+1", "delete"], ["0/E+2", "delete"]),
        *(["0/E+3", "insert"], ["0/E+4", "insert"], ["0/E+inf", "commit"]),
    ]
    assert f"position 1:0/E:2:{SOURCE}" in output.err


def test_a_command_that_cannot_continue_ends(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And says that the log no longer has what its position needs."""
    append(log, snapshot_rows(taken(1, "9:9:", 9), {"h": {"id": "0"}}))
    append(log, snapshot_rows(replace(taken(2, "15:15:", 20), incarnation=2, starts_after=15), {}))
    after = f"1:0/C:0:{SOURCE}"
    assert main(["read", "users", "--log", log, "--log-rows", "--after", after]) == PositionError.exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert f"position {after} is from before shape users" in output.err
    assert "the log no longer has what it had there: read the shape again from its beginning" in output.err


def test_shape_without_its_snapshot_ends_the_command(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the remedy; its changes alone can be printed."""
    register(log, wanted_entry())
    assert main(["read", "users", "--log", log]) == SnapshotMissingError.exit_code
    assert "run flushtracker snapshot" in capsys.readouterr().err
    assert len(printed(capsys, "--log", log, "--log-rows", "--changes", "--format", "jsonl").splitlines()) == 4
