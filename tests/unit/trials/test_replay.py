"""The recorded WAL as the streams that the job reads: chained fragments, shape changes, and flushes."""

import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.errors import GapError
from flushtracker.event_files import read_lines, stream_files
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.trials.recordings.recording import RecordedMessage, read_recording
from flushtracker.trials.recordings.replay import Replay
from flushtracker.wal.changes import Change, Delete, Insert, LogItem, Truncate, Update
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import decode
from tests.support.recording_file import encode_recording
from tests.support.tables import LSN, USERS, at, transaction

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "recording"
SHAPES = ROOT / "conf" / "shapes.yaml"
USERS_SHAPE = ShapeDefinition("users", ("public", "users"))


@dataclass(frozen=True)
class Streams:
    """The output of a replay, file by file, each line parsed as its event."""

    fragment_files: list[list[FragmentEvent]]
    shapes: list[ShapeEntry]
    shape_changes: list[ShapeChangesEvent]

    @property
    def fragments(self) -> list[FragmentEvent]:
        return [event for file in self.fragment_files for event in file]

    def last_items(self) -> dict[str, dict[int, LogOffset]]:
        """For each shape and transaction, the offset of the last item."""
        last: dict[str, dict[int, LogOffset]] = defaultdict(dict)
        for event in self.shape_changes:
            for item in event.items:
                last[event.shape_id][item.offset.tx_offset] = item.offset
        return last


def streams(out: Path) -> Streams:
    def files(name: str) -> list[list[str]]:
        return [list(read_lines(file)) for file in stream_files(out / name)]

    return Streams(
        [[FragmentEvent.from_json(line) for line in file] for file in files("fragments")],
        [_shape_entry(line) for file in files("shapes") for line in file],
        [ShapeChangesEvent.from_json(line) for file in files("shape_changes") for line in file],
    )


def _shape_entry(line: str) -> ShapeEntry:
    entry = parse_registry_entry(line)
    assert isinstance(entry, ShapeEntry)
    return entry


def replay(out: Path, *options: str, recording: Path = RECORDING, shapes: Path = SHAPES) -> int:
    return main(["replay", "--recording", str(recording), "--shapes", str(shapes), "--out", str(out), *options])


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """The recording, replayed over the shapes in ``conf``."""
    out = tmp_path_factory.mktemp("replayed")
    assert replay(out) == 0
    return streams(out)


def test_a_recorded_shape_never_waits_for_a_snapshot(tmp_path: Path) -> None:
    """There is no server to take one on, whatever the shapes file says."""
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("shapes:\n  - {id: users, table: public.users, snapshot: true}\n")
    out = tmp_path / "out"
    assert replay(out, shapes=shapes) == 0
    assert [(entry.definition.snapshot, entry.starts_visible) for entry in streams(out).shapes] == [(False, False)]


@pytest.fixture(scope="module")
def changes() -> list[Change]:
    """Every change of the recording."""
    converter = FragmentConverter()
    fragments = [fragment for frame in read_recording(RECORDING) for fragment in converter.handle(decode(frame.data))]
    return [change for fragment in fragments for change in fragment.changes]


# Fragments


def test_the_chain_of_fragments_is_unbroken(replayed: Streams) -> None:
    """Each follows the one before; only the first starts a chain, just below its own commit."""
    first, *others = replayed.fragments
    assert (first.start, first.follows) == (True, LogOffset(first.lsn - 1, 0))
    for before, fragment in pairwise((first, *others)):
        assert (fragment.start, fragment.follows) == (False, before.last_log_offset)
        assert before.last_log_offset < fragment.last_log_offset
    assert {fragment.source for fragment in replayed.fragments} == {"recording/1/shapes"}
    assert sum(fragment.commit is not None for fragment in replayed.fragments) == 369
    assert replayed.fragments[-1].lsn == 29952752


def test_a_fragment_names_each_shape_with_its_last_item(replayed: Streams) -> None:
    """The metadata agrees with the published changes, and a commit names every shape of its transaction."""
    published: dict[LogOffset, dict[str, ShapeChangesEvent]] = defaultdict(dict)
    for event in replayed.shape_changes:
        assert event.shape_id not in published[event.last_log_offset]
        published[event.last_log_offset][event.shape_id] = event
    took_part: set[str] = set()
    for fragment in replayed.fragments:
        events = published.pop(fragment.last_log_offset, {})
        assert [shape.shape_id for shape in fragment.shapes] == sorted(events)
        for shape in fragment.shapes:
            event = events[shape.shape_id]
            assert shape.last_offset == (event.items[-1].offset if event.items else None)
            assert (event.xid, event.commit) == (fragment.xid, fragment.commit)
            assert event.has_begin == (shape.shape_id not in took_part)
            took_part.add(shape.shape_id)
        if fragment.commit is not None:
            assert {shape.shape_id for shape in fragment.shapes} == took_part
            took_part = set()
    assert not published
    # Some commit has no change for a shape, so the commit alone must complete what the shape flushed before.
    assert any(shape.change_count == 0 for fragment in replayed.fragments for shape in fragment.shapes)


def test_a_shape_that_nothing_matches_has_no_events(replayed: Streams) -> None:
    """It has an entry in the registry, but no changes and no mention."""
    matched = {event.shape_id for event in replayed.shape_changes}
    assert "users-none" not in matched
    assert len(matched) == 14
    assert {entry.definition.id for entry in replayed.shapes} == matched | {"users-none"}


# Shape changes


def key_is(column: str, matches: Callable[[int], bool]) -> Callable[[dict[str, str | None]], bool]:
    return lambda row: matches(int(row[column] or 0))


def naive(changes: Iterable[Change], table: str, inside: Callable[[dict[str, str | None]], bool]) -> Iterator[str]:
    """Offset and operation of each item of a shape on ``table`` with the key ``id``; ``inside`` tests the key."""
    for change in changes:
        if change.relation.name != table:
            continue
        op, second = change.offset.op_offset, change.offset.op_offset + 1
        match change:
            case Truncate():
                items = [(op, "truncate")]
            case Insert(new=new):
                items = [(op, "insert")] if inside(dict(new)) else []
            case Delete(old=old):
                items = [(op, "delete")] if inside(dict(old)) else []
            case Update(old=old, new=new):
                before, after = inside(dict(old or new)), inside(dict(new))
                moved = old is not None and old["id"] != new["id"]
                if before and after and moved:
                    items = [(op, "delete"), (second, "insert")]
                elif before or after:
                    items = [(op, "update" if before and after else "insert" if after else "delete")]
                else:
                    items = []
        yield from (f"{LogOffset(change.offset.tx_offset, item)} {operation}" for item, operation in items)


@pytest.mark.parametrize(
    ("shape_id", "table", "inside"),
    [
        ("users", "users", lambda _row: True),
        ("users-first-hundred", "users", key_is("id", lambda key: key <= 100)),
        ("users-chosen", "users", key_is("id", lambda key: key in {7, 12, 15, 101, 404})),
        ("orders", "orders", lambda _row: True),
        ("orders-original", "orders", key_is("id", lambda key: key < 1_000_000)),
        ("orders-renumbered", "orders", key_is("id", lambda key: key >= 1_000_000)),
    ],
)
def test_a_shape_gets_what_a_naive_filter_gives(
    replayed: Streams, changes: list[Change], shape_id: str, table: str, inside: Callable[[object], bool]
) -> None:
    """All items of all its events, at the offsets of the transaction, none missing and none twice."""
    items: list[LogItem] = []
    for event in replayed.shape_changes:
        if event.shape_id == shape_id:
            items += event.items
    expected = list(naive(changes, table, inside))
    assert [f"{item.offset} {item.operation}" for item in items] == expected
    assert expected


# Options


def test_a_recording_that_ends_inside_a_transaction_leaves_it_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole transactions are published; the last one has no commit, which is reported."""
    frames = list(read_recording(RECORDING))
    write_recording(tmp_path / "cut", frames[: next(n for n in range(4000, 6000) if frames[n].data[:1] == b"I") + 1])
    options = ("--max-batch-size", "1", "--fragments-per-file", "500")
    assert replay(tmp_path / "out", *options, recording=tmp_path / "cut") == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        "flushtracker replay: the recording ends inside a transaction, which stays open"
    )
    cut = streams(tmp_path / "out")
    assert cut.fragments[-1].lsn >= max(fragment.lsn for fragment in cut.fragments if fragment.commit is not None)


# Refusals


def write_recording(directory: Path, frames: Iterable[RecordedMessage]) -> None:
    directory.mkdir()
    (directory / "frames.bin.gz").write_bytes(gzip.compress(encode_recording(frames), 1))


def refused(capsys: pytest.CaptureFixture[str], code: int, expected: int) -> str:
    """The one line that a refused replay prints."""
    assert code == expected
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_streams_that_have_files_are_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second chain would go back behind the first; nothing is changed."""
    assert replay(tmp_path) == 0
    capsys.readouterr()
    files = sorted(tmp_path.rglob("*"))
    last = stream_files(tmp_path / "fragments")[-1].name
    assert refused(capsys, replay(tmp_path), 2) == (
        f"flushtracker replay: stream {tmp_path}/fragments already has files (21, up to {last}); remove the streams "
        "together with the checkpoint and tables made from them, or name another --out"
    )
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            "{id: a, table: public.users, where: id +}",
            (
                "flushtracker replay: {file} line 2: shape 'a': where \"id +\" is not one SQL condition: "
                "line 1, column 5, near the end: this is not expected here; correct it"
            ),
        ),
        (
            "{id: a, table: public.users, where: nme = 'x'}",
            (
                "flushtracker replay: {file} line 2: shape 'a': public.users: where reads column \"nme\", which the "
                "table does not have; did you mean name?; correct the name, and put it in double quotes if it has "
                "capitals"
            ),
        ),
        (
            "{id: a, table: public.users, columns: [id, nme]}",
            (
                "flushtracker replay: {file} line 2: shape 'a' on public.users: columns names nme, which the table "
                "lacks; it has id, tenant_id, region, name, bio, balance, created_at; did you mean name?"
            ),
        ),
    ],
)
def test_a_shape_that_is_refused_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: str, message: str
) -> None:
    """Both when it is defined and when its table becomes known."""
    (tmp_path / "shapes.yaml").write_text(f"shapes:\n  - {shape}\n")
    line = refused(capsys, replay(tmp_path / "out", shapes=tmp_path / "shapes.yaml"), 2)
    assert line == message.replace("{file}", str(tmp_path / "shapes.yaml"))


def test_newcomer_misspells_a_table_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay in which the shape took no part, and that exits with 0, looks like one that has worked."""
    (tmp_path / "shapes.yaml").write_text("shapes:\n  - {id: a, table: public.user}\n")
    line = refused(capsys, replay(tmp_path / "out", shapes=tmp_path / "shapes.yaml"), 2)
    assert line == (
        "flushtracker replay: shape 'a': the recording has no changes of public.user; it has public.audit, "
        "public.events_p0, public.events_p1, public.order_items, public.orders, public.users"
    )
    assert not (tmp_path / "out").exists()


def test_a_frame_that_cannot_be_read_is_named_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message also has its LSN; the exit code is that of bad input."""
    frames = list(read_recording(RECORDING))[:3]
    write_recording(tmp_path / "bad", [*frames, RecordedMessage(0x194BCD8, 0x194BCD8, b"I\x00")])
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("shapes:\n  - {id: a, table: public.users}\n")
    line = refused(capsys, replay(tmp_path / "out", recording=tmp_path / "bad", shapes=shapes), 3)
    assert line.startswith("flushtracker replay: frame 4, at 0/194BCD8: pgoutput Insert: byte 1 of 2 ")


def test_a_transaction_over_the_limit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the transaction, its size and the limit."""
    line = refused(capsys, replay(tmp_path, "--max-tx-size", "30000"), 3)
    assert line.startswith("flushtracker replay: transaction ")
    assert "bytes, but max_tx_size is 30000" in line


# The sequencer


def test_a_chain_starts_just_below_the_confirmed_lsn() -> None:
    """The server resends from there, so nothing is missing before the first fragment."""
    sequencer = FragmentSequencer("s", confirmed_lsn=900, max_event_bytes=64 << 20)
    (fragment,) = transaction([Insert(USERS, at(0), {"id": "1"})])
    published = sequencer.sequence(fragment, EventRouter([USERS_SHAPE]).route(fragment))
    assert (published.fragments[0].start, published.fragments[0].follows) == (True, LogOffset(899, 0))
    assert [event.shape_id for event in published.shape_changes] == ["users"]


def test_a_fragment_that_goes_back_does_not_enter_the_chain() -> None:
    """The sequencer is unchanged, so the next fragment that rises is accepted."""
    sequencer = FragmentSequencer("s", confirmed_lsn=LSN, max_event_bytes=64 << 20)
    (fragment,), (later,) = transaction([], LSN), transaction([], LSN + 100)
    sequencer.sequence(fragment, ())
    with pytest.raises(GapError) as refusal:
        sequencer.sequence(fragment, ())
    assert str(refusal.value) == (
        "source s: fragment 0/3E8+0 is not past 0/3E8+0, the end of the chain; reconnect and start a new chain"
    )
    assert sequencer.sequence(later, ()).fragments[0].follows == LogOffset(LSN, 0)


def test_a_shape_removed_in_mid_transaction_is_named_by_the_commit_and_gets_nothing() -> None:
    """The tracker has to close the transaction; the writer has nothing more to do for it."""
    sequencer, router = FragmentSequencer("s", LSN, max_event_bytes=64 << 20), EventRouter([USERS_SHAPE])
    first, last = transaction([Insert(USERS, at(0), {"id": str(key)}) for key in range(2)], sizes=[1])
    sequencer.sequence(first, router.route(first))
    router.remove_shape("users")
    published = sequencer.sequence(last, router.route(last))
    assert [(shape.shape_id, shape.last_offset, shape.change_count) for shape in published.fragments[0].shapes] == [
        ("users", None, 0)
    ]
    assert published.shape_changes == ()


def test_a_replay_has_a_limit_of_at_least_one_fragment() -> None:
    """The constructor checks it."""
    with pytest.raises(ValueError, match=r"^fragments_per_tick is 0, but must be at least 1$"):
        Replay("s", [], fragments_per_tick=0)
