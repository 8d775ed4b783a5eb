"""The order in which the outbox publishes, and what capture's configuration refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES, Topics
from flushtracker.shapes.routed_fragment import RoutedFragment, RoutedFragments
from flushtracker.wal.changes import Commit, LogItem, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher

COMMIT = Commit("2026-11-21T01:02:03.456789Z", 1100)
AT = LogOffset(1000, 4)
LIMIT = 10_000


def fragment(*shape_ids: str, note: str = "") -> RoutedFragments:
    item = LogItem(AT, "insert", "k", {"note": note})
    return routed(*(RoutedFragment(key, 42, 1000, AT, True, COMMIT, (item,), 1) for key in shape_ids))  # noqa: FBT003


def routed(*parts: RoutedFragment, commit: Commit | None = COMMIT, at: LogOffset = AT) -> RoutedFragments:
    return RoutedFragments(TransactionFragment(42, 1000, at, has_begin=True, commit=commit), parts)


def outbox(publisher: FakePublisher, published: list[int]) -> Outbox:
    topics = Topics("fragments", "flushes", "shapes", "changes")
    box = Outbox(publisher, topics, published.append, EventLimit(LIMIT + 4_096, LIMIT))
    box.begin_chain("7/1/s", 900)
    return box


def test_a_fragment_is_published_once_all_of_its_events_are_confirmed() -> None:
    """All of its events are sent without waiting; the last confirmation publishes it."""
    publisher, published = FakePublisher(), list[int]()
    outbox(publisher, published).publish_fragment(fragment("a", "b"))
    assert publisher.log == ['changes ["7/1/s","a"]', 'changes ["7/1/s","b"]', "fragments 7/1/s"]
    first, second, third = publisher.unconfirmed
    third()
    first()
    assert published == []
    second()
    assert published == [1000]


def test_a_shape_waits_until_those_it_depends_on_are_confirmed() -> None:
    """Shapes are sent layer by layer, waiting only if the fragment has events of a lower layer."""
    publisher = FakePublisher()
    box = outbox(publisher, [])
    box.layers = {"a": 2, "b": 1}
    box.publish_fragment(fragment("a", "b", "c"))
    keys = ['changes ["7/1/s","c"]', "confirmed", 'changes ["7/1/s","b"]', "confirmed", 'changes ["7/1/s","a"]']
    assert publisher.log == [*keys, "fragments 7/1/s"]
    publisher.log.clear()
    box.begin_chain("7/1/s", 900)
    box.publish_fragment(fragment("a"))
    assert "confirmed" not in publisher.log


def test_an_event_over_the_limit_that_cannot_be_split_is_refused() -> None:
    """The message does not show the row's values."""
    with pytest.raises(BrokerError) as raised:
        outbox(FakePublisher(), []).publish_fragment(fragment("a", note="secret" * (LIMIT // 6)))
    assert str(raised.value) == (
        f"an event of transaction 42 has {LIMIT // 6 * 6 + 351} bytes, over the limit of {LIMIT} (max_event_bytes, "
        "less the key), and cannot be split"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_changes_over_the_limit_are_several_events_and_published_once_all_are_confirmed(order: int) -> None:
    """The parts follow each other, end at a change's offset, and only the last has the commit; none is over the limit.

    The two items of an update that splits stay together.
    """
    ops = (0, 2, 4, 5, 6, 8, 10)
    items = tuple(LogItem(LogOffset(1000, op), "insert", "k", {"note": "x" * (LIMIT // 3)}) for op in ops)
    whole = fragment("a", "b")
    last = LogOffset(1000, 10)
    changes = replace(whole.parts[0], items=items, last_log_offset=last)
    publisher, published = FakePublisher(), list[int]()
    outbox(publisher, published).publish_fragment(routed(changes, *whole.parts[1:], at=last))
    values = [str(value) for topic, value in publisher.values if topic == "changes"][:-1]
    parts = [ShapeChangesEvent.from_json(value) for value in values]
    assert max(map(len, values)) <= LIMIT
    assert tuple(item for part in parts for item in part.items) == items
    assert [[item.offset.op_offset for item in part.items] for part in parts] == [[0, 2], [4, 5], [6, 8], [10]]
    assert [part.last_log_offset.op_offset for part in parts] == [2, 4, 8, 10]
    assert [part.follows for part in parts[1:]] == [part.last_log_offset for part in parts[:-1]]
    assert [(part.start, part.has_begin, part.commit) for part in parts] == [
        (True, True, None),
        *[(False, False, None)] * 2,
        (False, False, COMMIT),
    ]
    for confirm in publisher.unconfirmed[::order]:
        assert published == []
        confirm()
    assert published == [1000]


def test_a_fragment_without_events_is_published_with_the_next_one() -> None:
    """Its shape was removed, and the commit names it; nothing waits for the fragment."""
    publisher, published = FakePublisher(), list[int]()
    box = outbox(publisher, published)
    removed = (RoutedFragment(f"{n:0200}", 42, 1000, AT, True, None, removed=True) for n in range(LIMIT // 200))  # noqa: FBT003
    box.publish_fragment(routed(*removed, commit=None, at=LogOffset(1000, 2)))
    assert publisher.log == []
    box.publish_fragment(fragment("a"))
    publisher.confirm()
    assert published == [1000]


CONFIG = """
postgres: {host: db, port: 5432, password: "%s"}
kafka: "k:9092"
storage: data
shapes: shapes.yaml
capture:
  slot: s
"""


def test_a_password_comes_only_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in plain text is refused and not shown; one from a variable is not shown either."""
    file = tmp_path / "capture.yaml"
    file.write_text(CONFIG % "hunter2")
    with pytest.raises(ConfigError, match=r"line 2: postgres.password is in plain text") as raised:
        load_capture_config(file)
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("SECRET", "hunter2")
    file.write_text(CONFIG % "${SECRET}")
    config = load_capture_config(file)
    assert config.postgres.connection["password"] == "hunter2"  # noqa: S105  the test's own
    assert "hunter2" not in repr(config)


def test_a_fragment_has_at_least_one_byte(tmp_path: Path) -> None:
    """Any greater limit is accepted: an event that is too large is published as several."""
    file = tmp_path / "capture.yaml"
    file.write_text(CONFIG % "${HOME}" + "  max_batch_bytes: 0")
    with pytest.raises(ConfigError, match="max_batch_bytes is '0', not a number of at least 1"):
        load_capture_config(file)
    file.write_text(CONFIG % "${HOME}" + "  max_batch_bytes: 100000000")
    assert load_capture_config(file).event_limit == EventLimit(MAX_EVENT_BYTES, 100_000_000)
