"""Streams as directories of files, as Spark's file source needs them."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.event_files import StreamWriter, read_lines, require_empty, stream_files

MS = 1_000_000


def mtimes_ms(directory: Path) -> list[int]:
    """Modification times as Spark sees them, in the order of the names."""
    return [file.stat().st_mtime_ns // MS for file in sorted(directory.iterdir())]


def lines(directory: Path) -> list[list[str]]:
    return [list(read_lines(file)) for file in stream_files(directory)]


def test_published_lines_are_read_back_file_by_file(tmp_path: Path) -> None:
    """One line per event, whatever the text contains; the directory is created."""
    writer = StreamWriter(tmp_path / "new" / "stream")
    first = writer.publish(["a", "ünï\u2028\u0085", '{"quoted": "\\n"}'])
    writer.publish(iter(["d"]))
    assert first == tmp_path / "new" / "stream" / "000000000000.jsonl"
    assert lines(tmp_path / "new" / "stream") == [["a", "ünï\u2028\u0085", '{"quoted": "\\n"}'], ["d"]]


def test_names_sort_in_the_order_of_publication(tmp_path: Path) -> None:
    """They still do past the number at which a digit is added."""
    writer = StreamWriter(tmp_path)
    published = [writer.publish([str(number)]) for number in range(12)]
    assert published == sorted(tmp_path.iterdir()) == stream_files(tmp_path)


@pytest.mark.parametrize(
    "clock_ns", [[5000 * MS] * 4, [5000 * MS, 4000 * MS, 3000 * MS, 6000 * MS], [5000 * MS + n for n in range(4)]]
)
def test_modification_times_strictly_increase_on_any_clock(tmp_path: Path, clock_ns: list[int]) -> None:
    """At least a millisecond apart, even if the clock stops, goes back or moves by nanoseconds."""
    ticks: Iterator[int] = iter(clock_ns)
    writer = StreamWriter(tmp_path, lambda: next(ticks))
    for number in range(4):
        writer.publish([str(number)])
    times = mtimes_ms(tmp_path)
    assert times[0] == 5000
    assert all(earlier < later for earlier, later in pairwise(times))


def test_a_restarted_writer_continues_after_the_newest_file(tmp_path: Path) -> None:
    """Names and times both continue, even if the new process's clock is behind."""
    StreamWriter(tmp_path, lambda: 9000 * MS).publish(["before"])
    restarted = StreamWriter(tmp_path, lambda: 1000 * MS)
    assert restarted.publish(["after"]) == tmp_path / "000000000001.jsonl"
    assert mtimes_ms(tmp_path) == [9000, 9001]


def test_numbers_continue_when_old_files_are_archived(tmp_path: Path) -> None:
    """A reader that remembers names must not encounter one twice."""
    writer = StreamWriter(tmp_path)
    for number in range(3):
        writer.publish([str(number)])
    for file in stream_files(tmp_path)[:2]:
        file.unlink()
    assert StreamWriter(tmp_path).publish(["3"]) == tmp_path / "000000000003.jsonl"


def test_a_killed_writers_partial_file_is_not_in_the_stream(tmp_path: Path) -> None:
    """A file under its hidden name is never read, and the next file replaces it."""
    (tmp_path / ".000000000000.jsonl").write_text("half an ev")
    writer = StreamWriter(tmp_path)
    assert stream_files(tmp_path) == []
    writer.publish(["whole"])
    assert lines(tmp_path) == [["whole"]]
    assert len(list(tmp_path.iterdir())) == 1


def test_an_empty_file_is_never_published(tmp_path: Path) -> None:
    """Without events there is no file, and no number is used."""
    writer = StreamWriter(tmp_path)
    assert writer.publish([]) is None
    assert list(tmp_path.iterdir()) == []
    assert writer.publish(["a"]) == tmp_path / "000000000000.jsonl"


@pytest.mark.parametrize("line", ["two\nlines", "two\rlines"])
def test_a_line_that_would_be_read_as_two_is_refused(tmp_path: Path, line: str) -> None:
    """Nothing of its file is published."""
    with pytest.raises(ValueError, match=r"a line contains a line break and would be read as two events$"):
        StreamWriter(tmp_path).publish(["sound", line])
    assert list(tmp_path.iterdir()) == []


def test_files_are_listed_in_the_order_in_which_spark_reads_them(tmp_path: Path) -> None:
    """Files are ordered by modification time, whatever their writers and names; hidden files are left out."""
    for number, name in enumerate(["b.json", "a.json", "_ignored", ".hidden"]):
        (tmp_path / name).write_text("x\n")
        os.utime(tmp_path / name, (number, number))
    assert [file.name for file in stream_files(tmp_path)] == ["b.json", "a.json"]
    assert stream_files(tmp_path / "missing") == []


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """A file has its name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as refusal:
        StreamWriter(tmp_path / "file" / "stream")
    assert str(refusal.value) == (
        f"stream {tmp_path}/file/stream cannot be used: Not a directory; name a writable directory"
    )


def test_a_file_that_cannot_be_written_may_be_published_again(tmp_path: Path) -> None:
    """The error names stream and file; once the cause is fixed, the same call succeeds under the same name."""
    writer = StreamWriter(tmp_path)
    (tmp_path / ".000000000000.jsonl").mkdir()
    with pytest.raises(FlushtrackerError) as refusal:
        writer.publish(["a"])
    assert str(refusal.value) == (
        f"stream {tmp_path}: file 000000000000.jsonl cannot be written: Is a directory; fix that and retry"
    )
    (tmp_path / ".000000000000.jsonl").rmdir()
    assert writer.publish(["a"]) == tmp_path / "000000000000.jsonl"


def test_a_stream_with_files_is_not_empty(tmp_path: Path) -> None:
    """The refusal names the directory, its files and what to do; a missing directory counts as empty."""
    require_empty([tmp_path, tmp_path / "missing"], "unused")
    StreamWriter(tmp_path).publish(["a"])
    with pytest.raises(ConfigError) as refusal:
        require_empty([tmp_path / "missing", tmp_path], "remove it")
    assert str(refusal.value) == f"stream {tmp_path} already has files (1, up to 000000000000.jsonl); remove it"
