"""When changed shapes are taken, of a file or a folder, and which are refused; each check is one call, no clock."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from flushtracker.capture.shapes import shapes_file_reader
from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.capture.shapes.shapes_file_reader import STEADY_CHECKS, ShapesFileReader
from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import ShapesFile, parse_shapes
from flushtracker.wal.log_offset import LogOffset

INTERVAL_S = 2.0
NOW_S = 1_000_000.0


class Watched:
    """A shapes file with the shapes ``ids``, read at the start, and the changes of it that were applied.

    ``path`` is the file, or its ``folder`` if that is what capture watches.
    """

    def __init__(self, folder: Path, *ids: str, is_folder: bool = False) -> None:
        self.folder = folder
        self.file = folder / "shapes.yaml"
        self.path = folder if is_folder else self.file
        self.applied: list[list[str]] = []
        self.error: Exception | None = None
        self.waits = 0
        self.retries = 0
        self.during_wait: Callable[[], bool] = lambda: False
        self.write(text_of(*ids))
        self.refused = RefusedShapes()
        self.reader = ShapesFileReader(self.path, INTERVAL_S, self._wait, self.refused, lambda: NOW_S)
        self.reader.load()

    def write(self, text: str, written_s: float = NOW_S) -> None:
        """Replace the content in place; the modification time is that of the fake clock, the same for every write."""
        self.file.write_text(text)
        for path in (self.file, self.folder):
            os.utime(path, (written_s, written_s))

    def check(self, times: int = 1, *, again: bool = False) -> None:
        for _ in range(times):
            self.reader.apply_file(self._apply, self._retry if again else None)

    def _apply(self, shapes: ShapesFile) -> None:
        if self.error is not None:
            raise self.error
        self.applied.append([definition.id for definition in shapes.definitions])

    def _retry(self) -> None:
        if self.error is not None:
            raise self.error
        self.retries += 1

    def _wait(self, seconds: float) -> bool:
        assert seconds == INTERVAL_S
        self.waits += 1
        return self.during_wait()


def text_of(*ids: str, head: str = "") -> str:
    """A file with a line for each shape, after ``head``."""
    lines = [f"  - {{id: {shape_id}, table: public.users}}\n" for shape_id in ids]
    return head + "shapes:" + ("\n" + "".join(lines) if lines else " []\n")


class SlowReads:
    """Parses files only after :meth:`finish`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_end = threading.Event()
        monkeypatch.setattr(shapes_file_reader, "parse_shapes", self._parse)
        monkeypatch.setattr(shapes_file_reader, "_SHORT_S", 0.01)

    def _parse(self, files: Mapping[Path, bytes]) -> ShapesFile:
        assert self._may_end.wait(30)
        return parse_shapes(files)

    def finish(self) -> None:
        self._may_end.set()
        for thread in threading.enumerate():
            if thread.name == "shapes file":
                thread.join(30)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, "a", "b", "c", "d")


@pytest.fixture
def folder(tmp_path: Path) -> Watched:
    return Watched(tmp_path, "a", "b", "c", "d", is_folder=True)


def test_a_change_is_taken_once_it_was_the_same_for_some_checks(watched: Watched) -> None:
    """Its modification time and its size need not differ: the content does."""
    watched.check(5)
    assert watched.applied == []
    watched.write(text_of("a", "b", "c", "e"))
    watched.check(STEADY_CHECKS - 1)
    assert watched.applied == []
    watched.check(5)
    assert watched.applied == [["a", "b", "c", "e"]]


@pytest.mark.parametrize("half", ["", "shapes:", text_of(), text_of("a", "b"), text_of("a", "b", "c") + "  - {id"])
def test_a_file_that_is_written_in_two_steps_is_taken_whole(
    watched: Watched, half: str, caplog: pytest.LogCaptureFixture
) -> None:
    """2.5 s between the steps are one or two checks of it: the first half removes nothing, and is not even reported."""
    watched.write(half)
    watched.check(2)
    watched.write(text_of("a", "b", "c", "d", "e"))
    watched.check(STEADY_CHECKS)
    assert watched.applied == [["a", "b", "c", "d", "e"]]
    assert caplog.messages == []


def test_a_file_that_keeps_changing_is_not_taken(watched: Watched) -> None:
    """Each content starts the count again, even if it comes back."""
    for _ in range(5):
        watched.write(text_of("a", "b"))
        watched.check(STEADY_CHECKS - 1)
        watched.write(text_of("a", "c"))
        watched.check(STEADY_CHECKS - 1)
    assert watched.applied == []


def test_a_file_that_is_back_to_what_was_applied_is_not_applied_again(watched: Watched) -> None:
    """An editor may write it, and write it back."""
    watched.write(text_of("a"))
    watched.check()
    watched.write(text_of("a", "b", "c", "d"))
    watched.check(5)
    assert watched.applied == []


def test_waiting_shapes_are_tried_again_while_the_file_is_the_same(watched: Watched) -> None:
    """Some may be delayed, or may be allowed by the catalog later; a change is taken only once it is steady."""
    watched.check(again=True)
    assert (watched.applied, watched.retries) == ([], 1)
    watched.write(text_of("a", "b", "c"))
    watched.check(again=True)
    assert (watched.applied, watched.retries) == ([], 1)


def test_a_failed_retry_is_reported_until_one_succeeds(watched: Watched) -> None:
    """Also while none is due."""
    watched.error = PostgresError("no")
    watched.check(again=True)
    watched.check()
    assert [each.reason for each in watched.refused.shown] == ["no"]
    watched.error = None
    watched.check(again=True)
    assert watched.refused.count == 0


def test_a_refused_file_is_logged_once_and_retried(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The reason may lie in the database; the shapes stay as they are. After a correction, it is reported again."""
    watched.error = ShapeError("no")
    for _ in range(2):
        watched.write(text_of("a", "b", "c", "d", "e"))
        watched.check(10)
        watched.write(text_of("a", "b", "c", "d"))
        watched.check()
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["shapes not applied reason=no"] * 2
    watched.write(text_of("a", "b", "c", "d", "e"))
    watched.error = PostgresError("there is no table yet")
    watched.check(10)
    watched.error = None
    watched.check(10)
    assert watched.applied == [["a", "b", "c", "d", "e"]]


def test_a_lost_connection_does_not_lose_the_change(watched: Watched) -> None:
    """The file is applied over the next connection."""
    watched.write(text_of("e"))
    watched.error = PostgresUnavailableError("gone")
    with pytest.raises(PostgresUnavailableError):
        watched.check(STEADY_CHECKS)
    watched.error = None
    watched.check()
    assert watched.applied == [["e"]]


def test_a_file_that_is_gone_for_a_moment_is_not_reported(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Some programs delete a file before they write it; one that stays away is reported, once."""
    text = watched.path.read_text()
    watched.path.unlink()
    watched.check(STEADY_CHECKS - 1)
    watched.write(text)
    watched.check(STEADY_CHECKS)
    assert caplog.messages == []
    watched.path.unlink()
    watched.check(10)
    (message,) = caplog.messages
    assert "cannot be read" in message
    assert watched.applied == []


# At the start.


def test_an_old_file_is_read_at_once(watched: Watched) -> None:
    """Nobody has written to it for as long as the checks take."""
    watched.write(text_of("a"), NOW_S - (STEADY_CHECKS - 1) * INTERVAL_S)
    assert watched.reader.wait_until_steady()
    assert watched.waits == 0


@pytest.mark.parametrize("written_s", [NOW_S - 1, NOW_S + 500], ids=["just now", "in the future"])
def test_a_start_waits_until_the_file_stays_the_same(watched: Watched, written_s: float) -> None:
    """It may have been truncated, to be filled a moment later; a clock that is wrong only makes it wait."""
    watched.write(text_of("a"), written_s)

    def fill() -> bool:
        if watched.waits == 1:
            watched.write(text_of("a", "b"), written_s)
        return False

    watched.during_wait = fill
    assert watched.reader.wait_until_steady()
    assert watched.waits == STEADY_CHECKS
    assert [definition.id for definition in watched.reader.load().definitions] == ["a", "b"]


def test_a_stop_ends_the_wait_at_the_start(watched: Watched) -> None:
    """And nothing is applied: the file may be half of what it will be."""
    watched.during_wait = lambda: True
    assert not watched.reader.wait_until_steady()
    assert watched.waits == 1


def test_an_unreadable_file_is_an_error_at_the_start(watched: Watched) -> None:
    """It ends capture: there are no older shapes to keep."""
    watched.path.unlink()
    assert watched.reader.wait_until_steady()
    with pytest.raises(ConfigError, match="cannot be read"):
        watched.reader.load()


# A folder.


def test_a_file_that_is_added_renamed_or_deleted_is_a_change_of_the_folder(folder: Watched) -> None:
    """It is taken as a change of a single file is, and the order is that of the names."""
    more, between = folder.path / "tail.yaml", folder.path / "middle.yaml"
    more.write_text("id: e\ntable: public.users\n")
    folder.check(STEADY_CHECKS - 1)
    assert folder.applied == []
    folder.check()
    more.rename(between)
    folder.check(STEADY_CHECKS)
    between.unlink()
    folder.check(5)
    assert folder.applied == [list("abcde"), list("eabcd"), list("abcd")]


@pytest.mark.parametrize(
    "name", [".shapes.yaml.new", ".#shapes.yaml", "shapes.yaml~", "#shapes.yaml#", ".shapes.yaml.swp", "old.yml"]
)
def test_what_an_editor_leaves_in_the_folder_is_no_change(folder: Watched, name: str) -> None:
    """Nor is a folder in it, nor a link that leads nowhere under such a name, as Emacs makes for a lock."""
    (folder.path / name).write_text("{")
    (folder.path / f".{name}.yaml").symlink_to("nobody@nowhere:1")
    (folder.path / "folder.yaml").mkdir()
    folder.check(5)
    assert folder.applied == []
    assert folder.refused.count == 0


@pytest.mark.parametrize("fault", ["dangling link", "not UTF-8", "not YAML", "no folder"])
def test_one_file_that_cannot_be_read_removes_nothing(folder: Watched, fault: str) -> None:
    """Nothing of the others is taken, either, until all can be read: as a web server does with its configuration."""
    (folder.path / "other.yaml").write_text("id: e\ntable: public.users\n")
    if fault == "dangling link":
        folder.file.unlink()
        folder.file.symlink_to("nowhere.yaml")
    elif fault == "not UTF-8":
        folder.file.write_bytes(b"id: \xff")
    elif fault == "not YAML":
        folder.write("id: [")
    else:
        folder.path.rename(folder.path.with_name("moved"))
    folder.check(10)
    assert folder.applied == []
    assert folder.refused.count == 1


def test_a_start_waits_while_names_in_the_folder_change(folder: Watched) -> None:
    """Its files may be old: they were moved into it, and more may follow."""
    folder.write(text_of("a"), NOW_S - 1_000)
    os.utime(folder.path, (NOW_S - 1, NOW_S - 1))
    assert folder.reader.wait_until_steady()
    assert folder.waits == STEADY_CHECKS - 1
    os.utime(folder.path, (NOW_S - 1_000, NOW_S - 1_000))
    assert folder.reader.wait_until_steady()
    assert folder.waits == STEADY_CHECKS - 1


def test_a_file_that_is_renamed_while_the_folder_is_listed_is_not_missed(
    folder: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old name was gone already, and its new one is before the place that the listing had reached."""
    listings = [[], [folder.path / "shapes.yaml"], [folder.path / "shapes.yaml"]]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listings.pop(0)))
    assert [definition.id for definition in folder.reader.load().definitions] == list("abcd")
    assert listings == []


# What a change may remove.


def registry(*live: str, ended: Iterable[str] = ()) -> ShapeRegistry:
    """Live shapes, and some that have ended and do not count."""
    entries = [ShapeEntry("7/1/s", shape(shape_id), 1, LogOffset(100, 0)) for shape_id in live]
    gone = [ShapeEntry("7/1/s", shape(shape_id), 1, LogOffset(100, 0), LogOffset(200, 0), "gone") for shape_id in ended]
    return ShapeRegistry([*entries, *gone])


def shape(shape_id: str) -> ShapeDefinition:
    return ShapeDefinition(shape_id, ("public", "users"))


@pytest.mark.parametrize(
    ("live", "left", "allow_removing", "removed"),
    [
        ("abcd", "abcd", 0, ""),
        ("abcd", "ab", 0, "cd"),
        ("abcd", "a", 0, None),
        ("abcd", "axyz", 0, None),
        ("abcd", "", 0, None),
        ("a", "", 0, None),
        ("a", "b", 0, None),
        ("", "", 0, ""),
        ("abcd", "a", 2, None),
        ("abcd", "a", 3, "bcd"),
        ("abcd", "", 3, None),
        ("abcd", "", 4, "abcd"),
        ("abcd", "", 9, "abcd"),
    ],
)
def test_a_file_may_remove_half_of_the_shapes_and_more_only_if_it_says_so(
    live: str, left: str, allow_removing: int, removed: str | None
) -> None:
    """An empty list, or the first half of a file, is refused with what to do; shapes that it adds do not count."""
    compare = registry(*live, ended="uvw").compare
    definitions = [shape(shape_id) for shape_id in left]
    if removed is not None:
        assert compare(definitions, allow_removing).removed == tuple(removed)
        return
    count = len(set(live) - set(left))
    with pytest.raises(
        ShapeError, match=rf"^the shapes file would remove {count} of the {len(live)} live shapes, permanently: '"
    ) as raised:
        compare(definitions, allow_removing)
    assert str(raised.value).endswith(f"add the line 'allow_removing: {count}' to it")


def test_the_refusal_names_some_of_the_shapes() -> None:
    """There may be many thousands."""
    with pytest.raises(ShapeError, match=r"permanently: 'a', 'b', 'c' and 3 more\. Complete the file; or, "):
        registry(*"abcdef").compare([])


def test_a_large_file_is_read_while_capture_goes_on(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand shapes take half a minute to read, in which nothing was published."""
    reads = SlowReads(monkeypatch)
    watched.write(text_of("a", "b"))
    watched.check(STEADY_CHECKS + 3)
    assert watched.applied == []
    reads.finish()
    watched.check()
    watched.check(3)
    assert watched.applied == [["a", "b"]]


def test_a_file_that_changes_while_it_is_read_is_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read may be half of either content."""
    reads = SlowReads(monkeypatch)
    watched.write(text_of("a", "b"))
    watched.check(STEADY_CHECKS)
    watched.write(text_of("a", "c"))
    reads.finish()
    watched.check()
    assert watched.applied == []
    watched.check(STEADY_CHECKS)
    reads.finish()
    watched.check()
    assert watched.applied == [["a", "c"]]


def test_a_large_file_that_is_wrong_is_reported_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a small one; the shapes stay as they are."""
    reads = SlowReads(monkeypatch)
    watched.write("shapes: 7\n")
    watched.check(STEADY_CHECKS)
    reads.finish()
    for _ in range(3):
        watched.check()
        reads.finish()
    assert watched.applied == []
    assert len([record for record in caplog.records if "shapes not applied" in record.getMessage()]) == 1
