"""What a task has read, as the columns that each group gets."""

from collections import Counter
from collections.abc import Iterable
from unittest.mock import patch

import pyarrow as pa

from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.tracking.chain_links import ChainLinks
from flushtracker.tracking.job import rows
from flushtracker.tracking.job.event_columns import EventColumns, GroupPart
from flushtracker.tracking.shape_events import FLUSHED, REMOVED, SENT, SENT_WITH_COMMIT, ShapeEvent, ShapeEvents
from flushtracker.tracking.source_tracker import CHAIN
from tests.support.sample_source import SampleSource


def test_each_group_gets_its_events_and_each_chain_its_links() -> None:
    """Fragments with shapes and without, flushes before and between them, and a source with flushes alone."""
    columns, one, two = EventColumns(), SampleSource("1/1/a"), SampleSource("2/1/b")
    columns.add_flush(one.flushed("x", 1100, 2).to_json().encode())
    columns.add_fragment(one.fragment(1100, 4, {"x": 2, "ü": None}).to_json().encode(), "0")
    columns.add_fragment(one.fragment(1100, 6, {"x": 6}, commit=True).to_json().encode(), "1")
    columns.add_fragment(one.keepalive(1200).to_json().encode(), "2")
    columns.add_flush(two.removed("x", 900).to_json().encode())
    # Not in the form that the fast reader knows.
    columns.add_flush(two.removed("ü", 900).to_json().encode())
    columns.add_flush(two.flushed("ü", 800, 2).to_json().encode())
    events: dict[str, Counter[ShapeEvent]] = {}
    links: dict[str, list[tuple[str, int]]] = {}
    for source, group, packed in columns.parts(4):
        if group == CHAIN:
            found = ChainLinks.unpack(packed)
            links[source] = list(zip(found.labels, found.numbers[2].tolist(), strict=True))
            continue
        part = ShapeEvents.unpack(packed)
        assert {str(shape_group_of(shape_id, 4)) for shape_id in part.labels} == {group}
        rows = zip(part.labels, part.numbers.T.tolist(), strict=True)
        events.setdefault(source, Counter()).update(ShapeEvent(shape_id, *numbers) for shape_id, numbers in rows)
    assert links == {"1/1/a": [("0", 1100), ("1", 1100), ("2", 1200)]}
    assert events == {
        "1/1/a": Counter(
            [
                ShapeEvent("x", FLUSHED, 1100, 2),
                ShapeEvent("x", SENT, 1100, 2, 4),
                ShapeEvent("ü", SENT, 1100, -1, 4),
                ShapeEvent("x", SENT_WITH_COMMIT, 1100, 6, 6),
            ]
        ),
        "2/1/b": Counter(
            [
                ShapeEvent("x", REMOVED, 900, 0),
                ShapeEvent("ü", REMOVED, 900, 0),
                ShapeEvent("ü", FLUSHED, 800, 2),
            ]
        ),
    }


def test_a_task_that_reads_more_than_it_keeps_returns_each_event_once() -> None:
    """It makes rows of what it has, and begins anew: with events of every kind, and with those that cannot be read."""
    source = SampleSource()
    fragments = [source.transaction(lsn, "x", "y") for lsn in range(2000, 2900, 100)]
    events = [(FRAGMENTS, each.to_json().encode(), f"f {each.lsn}") for each in fragments]
    events += [(FLUSHES, source.flushed("x", lsn).to_json().encode(), "w") for lsn in range(2000, 2700, 100)]
    events += [(FLUSHES, b"{" * number, f"bad {number}") for number in range(8)]
    whole = list(rows.read_parts([events], 2))
    with patch.object(rows, "_MAX_SIZE", 5):
        cut = list(rows.read_parts([events[:4], events[4:]], 2))
    # A fragment counts for 3, its link and two shapes, so two exceed the limit. Of what comes then, 5 reach it.
    assert [len(_events(parts)) for parts in cut] == [6, 6, 6, 6, 5, 5, 5, 3]
    assert len(whole) == 1
    assert sorted(_events(whole[0])) == sorted(event for parts in cut for event in _events(parts))


def test_nothing_left_to_return_is_no_row() -> None:
    """After a task's last rows, and of a task without events: Spark would make a batch of no columns of it."""
    events = [(FLUSHES, b"{", "w")] * 4
    with patch.object(rows, "_MAX_SIZE", 2):
        assert [len(parts) for parts in rows.read_parts([events], 2)] == [2, 2]
    assert list(rows.read_parts([[]], 2)) == []


def test_arrow_batches_become_one_batch_of_rows() -> None:
    """As Spark's workers get and return them: events of two batches, one without a value, and one that is no text."""
    source = SampleSource()
    fragment, flush = source.transaction(2000, "x", "y").to_json(), source.flushed("x", 2000).to_json()
    names = ["stream", "value", "place"]
    batches = [
        pa.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))
        for columns in (
            ([FRAGMENTS, FRAGMENTS], [fragment.encode(), None], ["f 1", "f 2"]),
            ([FLUSHES, FLUSHES], [flush.encode(), b"\xff{"], ["w 1", "w 2"]),
        )
    ]
    (batch,) = rows.event_parser(0)(iter(batches))
    assert batch.schema.names == rows.ROW_SCHEMA.fieldNames()
    parts = [GroupPart(*row.values()) for row in batch.to_pylist()]
    assert parts == next(rows.read_parts(map(rows._events, batches), 0))
    assert [part[:2] for part in parts] == [
        (source.name, CHAIN),
        (source.name, "x"),
        (source.name, "y"),
        *[("", "")] * 2,
    ]
    assert [rows.Unreadable.unpack(part.packed) for part in parts[3:]] == [
        rows.Unreadable(FRAGMENTS, None, "f 2", "it has no value"),
        rows.Unreadable(FLUSHES, r"\xff{", "w 2", "flush notification is not JSON: invalid character (byte 0)"),
    ]
    assert list(rows.event_parser(0)(iter([batches[0].slice(0, 0)]))) == []


def _events(parts: Iterable[GroupPart]) -> list[str]:
    """What groups and chains get, and what cannot be read."""
    found = []
    for source, group, packed in parts:
        if not source:
            found.append(str(rows.Unreadable.unpack(packed)))
        elif group == CHAIN:
            links = ChainLinks.unpack(packed)
            found += [str(links[index]) for index in range(len(links))]
        else:
            events = ShapeEvents.unpack(packed)
            columns = zip(events.labels, events.numbers.T.tolist(), strict=True)
            found += [str((group, shape_id, *numbers)) for shape_id, numbers in columns]
    return found


def test_garbage_of_any_size_is_handed_on_in_small_parts() -> None:
    """400 notifications of a megabyte, a few KB in Kafka, took 6 GB, and then ended the job at each start."""
    garbage = [(FLUSHES, b"\0" * 1_000_000, f"flushes partition 0 Kafka offset {number}") for number in range(150)]
    lists = list(rows.read_parts([garbage], 4))
    assert [len(parts) for parts in lists] == [68, 68, 14]
    assert max(len(part.packed) for parts in lists for part in parts) < 70_000
    assert rows.Unreadable.unpack(lists[0][0].packed).text == "\0" * 10_000 + "… (1,000,000 bytes)"
