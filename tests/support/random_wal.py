"""Random histories of a source, and random orders in which their events may reach the job.

Hypothesis draws the sizes and a seed, and prints them on failure; everything else follows from them. (Its own
``Random`` draws less evenly: it found less in ten seconds than seeds do in one.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from tests.support.wal_history import Event, History, Keepalive, Txn, last_sent

SHAPES = ("users", "orders", "items", "audit")
WRITERS = (LOG_WRITER, "own", "other")
COMMIT_RECORD_BYTES = 24
"""The minimum distance between two commits."""


RANDOMS = st.builds(Random, st.integers(0, 2**32 - 1))


@dataclass(frozen=True, slots=True)
class Case:
    """One history with all its events: fragments in stream order, including resends, and flushes in random order."""

    history: History
    stream: list[FragmentEvent] = field(repr=False)
    flushes: list[FlushNotification] = field(repr=False)

    @property
    def all_flushed(self) -> list[FlushNotification]:
        """The flushes, and those that leave nothing pending."""
        return self.flushes + self.history.last_flushes()


@st.composite
def cases(
    draw: st.DrawFn,
    source: str = "7301/1/shapes",
    *,
    resends: int = 2,
    bare_commits: bool = True,
    writers: Sequence[str] = WRITERS,
) -> Case:
    """A history of up to six transactions over four shapes, with up to ``resends`` resends from earlier positions."""
    rng = draw(RANDOMS)
    has_bare = bare_commits and draw(st.booleans())
    history = random_history(rng, source, size=draw(st.integers(1, 6)), bare_commits=has_bare, writers=writers)
    stream = random_stream(rng, history, runs=draw(st.integers(0, resends)))
    return Case(history, stream, random_flushes(rng, history, writers))


@st.composite
def several_sources(draw: st.DrawFn) -> list[Case]:
    """One or two sources with the same shapes and LSNs, which must not affect each other."""
    return [draw(cases(f"7301/{timeline}/shapes")) for timeline in range(1, draw(st.integers(1, 2)) + 1)]


def random_history(
    rng: Random,
    source: str,
    size: int,
    *,
    bare_commits: bool = False,
    shapes: Sequence[str] = SHAPES,
    writers: Sequence[str] = WRITERS,
) -> History:
    removals_left = rng.choice([0, 0, 1, 2])
    removed: dict[str, LogOffset] = {}
    gone: set[str] = set()
    items: list[Txn | Keepalive] = []
    lsn = 1000
    for index in range(size):
        lsn += COMMIT_RECORD_BYTES + rng.randint(0, 40)
        if rng.random() < 0.3:
            items.append(Keepalive(lsn))
            # The next commit record may start exactly at the keepalive's wal_end.
            lsn += rng.choice([1, 2, 30])
        # A resync: the shape's next incarnation starts above the transaction in which the last one ended.
        gone -= {shape_id for shape_id in sorted(gone) if rng.random() < 0.3}
        txn = Txn(lsn, 700 + index, tuple(_random_operations(rng, shapes, gone)))
        items.append(txn)
        if removals_left and rng.random() < 0.4:
            removals_left -= 1
            shape_id, at = rng.choice(shapes), rng.randrange(len(txn.operations))
            if shape_id not in removed:
                removed[shape_id] = LogOffset(lsn, 2 * at)
                gone.add(shape_id)
                items[-1] = _without(txn, shape_id, after=at)
    if rng.random() < 0.3:
        items.append(Keepalive(lsn + 50))
    # Each shape has a writer, and perhaps another one after its removal, by a resync.
    before, after = ({shape_id: rng.choice(writers) for shape_id in shapes} for _ in range(2))
    items = [_with_writers(item, before, after, removed) for item in items]
    return History(source, tuple(items), removed, bare_commits)


def _with_writers(
    item: Txn | Keepalive, before: Mapping[str, str], after: Mapping[str, str], removed: Mapping[str, LogOffset]
) -> Txn | Keepalive:
    """The item with the shapes' writers, which are those ``after`` the removals below it."""
    if isinstance(item, Keepalive):
        return item
    gone = {shape_id for shape_id, offset in removed.items() if offset.tx_offset < item.lsn}
    now = {shape_id: after[shape_id] if shape_id in gone else writer for shape_id, writer in before.items()}
    return replace(item, writers={shape_id: writer for shape_id, writer in now.items() if writer != LOG_WRITER})


def _random_operations(rng: Random, shapes: Iterable[str], removed: Iterable[str]) -> list[dict[str, int]]:
    """One to four operations, some routed nowhere; an update may be split for some of its shapes."""
    alive = [shape_id for shape_id in shapes if shape_id not in removed]
    operations = []
    for index in range(rng.randint(1, 4)):
        routed = [shape_id for shape_id in alive if rng.random() < 0.4]
        operations.append({shape_id: 2 * index + (rng.random() < 0.2) for shape_id in routed})
    return operations


def _without(txn: Txn, shape_id: str, after: int) -> Txn:
    operations = [
        {shape: op for shape, op in operation.items() if shape != shape_id or index <= after}
        for index, operation in enumerate(txn.operations)
    ]
    return replace(txn, operations=tuple(operations))


def random_stream(rng: Random, history: History, runs: int) -> list[FragmentEvent]:
    """The output of capture: ``runs`` runs from earlier positions that end anywhere, and one that reaches the end."""
    stream: list[FragmentEvent] = []
    for _ in range(runs):
        run = random_run(rng, history, stream, rng.randint(0, _items_sent(history, stream)))
        stream += run[: rng.randint(0, len(run))]
    return stream + random_run(rng, history, stream, rng.randint(0, _items_sent(history, stream)))


def random_run(
    rng: Random, history: History, stream: Sequence[FragmentEvent], first: int, acked: int | None = None
) -> list[FragmentEvent]:
    """One run of capture from the item ``first`` on, with its own cuts and its own selection of keepalives.

    ``acked`` is the LSN confirmed when capture starts; by default, a random possible one.
    """
    follows = LogOffset(_confirmed_lsn(rng, history, stream, first) if acked is None else acked, 0)
    run: list[FragmentEvent] = []
    for item in history.items[first:]:
        if isinstance(item, Txn):
            cuts = [index for index in range(1, len(item.operations)) if rng.random() < 0.5]
            bare = history.bare_commits and rng.random() < 0.5
            *before, commit = item.fragments(cuts, follows, start=not run, source=history.source, bare_commit=bare)
            run += before
            # Some limits of an event's size make the list of the commit's shapes several events.
            is_split = rng.random() < 0.3
            run += item.split(commit, _list_cuts(rng, commit)) if is_split else [commit]
        elif rng.random() < 0.7:
            run.append(item.fragment(follows, start=not run, source=history.source))
        follows = run[-1].last_log_offset if run else follows
    return run


def _list_cuts(rng: Random, commit: FragmentEvent) -> list[int]:
    often = rng.choice([0.0, 0.4, 1.0])
    return [index for index in range(1, len(commit.shapes)) if rng.random() < often]


def items_after(history: History, acked: int) -> int:
    """The index of the first item that PostgreSQL sends again after the ack ``acked``."""
    return sum(item.lsn <= acked for item in history.items)


def _items_sent(history: History, stream: Sequence[FragmentEvent]) -> int:
    """The number of leading items that were sent completely; a run may start at any of them, or right after."""
    return sum(item.lsn <= max((f.lsn for f in stream if f.commit), default=-1) for item in history.items)


def _confirmed_lsn(rng: Random, history: History, stream: Sequence[FragmentEvent], first: int) -> int:
    """A random ack after which PostgreSQL sends from the item ``first`` on; it confirms nothing that was never sent."""
    lsn = history.items[first].lsn if first < len(history.items) else history.items[-1].lsn + 1
    previous = max((txn.lsn for txn in history.txns if txn.lsn < lsn), default=history.items[0].lsn - 20)
    reached = last_sent(stream)
    possible = [lsn_ for lsn_ in (lsn - 1, lsn - 2) if lsn_ > previous and LogOffset(lsn_, 0) <= reached]
    return rng.choice([previous, *possible])


def random_flushes(rng: Random, history: History, writers: Sequence[str] = WRITERS) -> list[FlushNotification]:
    """Notifications that writers and capture may send: some flushes, stale and repeated ones, and removals.

    If there are several ``writers``, half of the histories have notifications of those that are not the shapes', too.
    """
    flushes = []
    written = history.written_offsets
    shapes = sorted(written.keys() | history.removals.keys())
    for shape_id in shapes:
        offsets = rng.choices(written[shape_id], k=rng.randint(0, 4)) if shape_id in written else []
        flushes += [history.flush(shape_id, offset) for offset in offsets]
        if shape_id in history.removals:
            flushes += [history.removal(shape_id)] * rng.randint(0, 2)
    if shapes and len(writers) > 1 and rng.random() < 0.5:
        flushes += [random_stray_flush(rng, history, rng.choice(shapes)) for _ in range(rng.randint(1, 6))]
    rng.shuffle(flushes)
    return flushes


def random_stray_flush(rng: Random, history: History, shape_id: str) -> FlushNotification:
    """A notification of a program that is not the shape's writer: of something in the WAL, or far ahead of it.

    A program that writes the shape at another time may not confirm what it wrote: compaction could lose that again.
    """
    txn = rng.choice(history.txns)
    ahead = LogOffset(history.items[-1].lsn + rng.choice([1, 10_000]), 0)
    offset = rng.choice([txn.boundary, LogOffset(txn.lsn, 0), ahead])
    stranger = rng.choice([writer for writer in WRITERS if writer != txn.writer_of(shape_id)])
    if any(each.writer_of(shape_id) == stranger for each in history.txns if each.lsn <= offset.tx_offset):
        stranger = "nobody"
    return FlushNotification(history.source, "flushed", shape_id, offset, stranger)


def random_batches(
    rng: Random, streams: Sequence[Sequence[FragmentEvent]], flushes: Sequence[FlushNotification], *, most: int = 6
) -> list[list[Event]]:
    """Cut events into micro-batches: each stream in order, flushes anywhere; every batch is shuffled."""
    batches: list[list[Event]] = [[] for _ in range(rng.randint(1, most))]
    for stream in streams:
        places = sorted(rng.randrange(len(batches)) for _ in stream)
        for place, fragment in zip(places, stream, strict=True):
            batches[place].append(fragment)
    for flush in flushes:
        batches[rng.randrange(len(batches))].append(flush)
    for batch in batches:
        rng.shuffle(batch)
    return batches
