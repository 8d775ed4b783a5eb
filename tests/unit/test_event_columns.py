"""What a task has read, as the columns that each group gets."""

from collections import Counter

from flushtracker.jobs.track.event_columns import EventColumns
from flushtracker.spark.shape_group import shape_group_of
from flushtracker.tracking.chain_links import ChainLinks
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
    events: dict[str, Counter[ShapeEvent]] = {}
    links: dict[str, list[tuple[str, int]]] = {}
    for source, group, packed in columns.parts(4):
        if group == CHAIN:
            found = ChainLinks.unpack(packed)
            links[source] = list(zip(found.labels, found.numbers[2].tolist(), strict=True))
            continue
        part = ShapeEvents.unpack(packed)
        assert {str(shape_group_of(shape_id, 4)) for shape_id in part.shape_ids} == {group}
        rows = zip(part.shape_ids, part.numbers.T.tolist(), strict=True)
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
        "2/1/b": Counter([ShapeEvent("x", REMOVED, 900, 0)]),
    }
