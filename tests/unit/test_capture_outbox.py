"""The order in which the outbox publishes, and what capture's configuration refuses."""

from pathlib import Path

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.event_limit import MAX_BATCH_BYTES
from flushtracker.capture.outbox import Outbox
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.fragment_sequencer import SequencedFragment
from flushtracker.events.stream_events import FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.kafka.kafka_config import Topics
from flushtracker.kafka.topic_rules import MAX_MESSAGE_BYTES
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher

COMMIT = Commit("2026-11-21T01:02:03.456789Z", 1100)
AT = LogOffset(1000, 4)


def fragment(*shape_ids: str, note: str = "") -> SequencedFragment:
    shapes = tuple(FragmentShape(shape_id, AT, 1) for shape_id in shape_ids)
    event = FragmentEvent("7/1/s", 42, 1000, LogOffset(900, 0), AT, False, True, COMMIT, shapes)  # noqa: FBT003  fields
    item = LogItem(AT, "insert", "k", {"note": note})
    return SequencedFragment(
        event,
        tuple(
            ShapeChangesEvent(*("7/1/s", key, 42, LogOffset(900, 0), AT, False, True, COMMIT, (item,)))
            for key in shape_ids
        ),
    )


def outbox(publisher: FakePublisher, published: list[int]) -> Outbox:
    return Outbox(publisher, Topics("fragments", "flushes", "shapes", "changes"), published.append)


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
    box.publish_fragment(fragment("a"))
    assert "confirmed" not in publisher.log


def test_an_event_over_the_limit_names_its_transaction_and_shapes() -> None:
    """The message does not show the row's values."""
    with pytest.raises(BrokerError) as raised:
        outbox(FakePublisher(), []).publish_fragment(fragment("a", note="secret" * (MAX_MESSAGE_BYTES // 6)))
    message = str(raised.value)
    assert message.startswith("an event of transaction 42 at 0/3E8, for a, has ")
    assert str(MAX_MESSAGE_BYTES) in message
    assert "secret" not in message


CONFIG = """
postgres: {connection: {host: db, port: 5432, password: "%s"}, slot: s, publication: p}
kafka: {bootstrap_servers: "k:9092", topics: {fragments: a, flushes: b, shapes: c, shape_changes: d}}
shapes: shapes.yaml
acks: acks
"""


def test_a_password_comes_only_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in plain text is refused and not shown; one from a variable is not shown either."""
    file = tmp_path / "capture.yaml"
    file.write_text(CONFIG % "hunter2")
    with pytest.raises(ConfigError, match=r"line 2: postgres.connection.password is in plain text") as raised:
        load_capture_config(file)
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("SECRET", "hunter2")
    file.write_text(CONFIG % "${SECRET}")
    config = load_capture_config(file)
    assert config.postgres.connection["password"] == "hunter2"  # noqa: S105  the test's own
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_batch_bytes: 0", "max_batch_bytes is '0', not a number of at least 1"),
        (f"max_batch_bytes: {MAX_BATCH_BYTES + 1}", f"not a number of at most {MAX_BATCH_BYTES}"),
    ],
)
def test_a_batch_that_could_become_too_large_an_event_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """A shape would be ended because of several rows that would fit one by one."""
    file = tmp_path / "capture.yaml"
    file.write_text(CONFIG % "${HOME}" + line)
    with pytest.raises(ConfigError, match=message):
        load_capture_config(file)
    file.write_text(CONFIG % "${HOME}" + f"max_batch_bytes: {MAX_BATCH_BYTES}")
    assert load_capture_config(file).max_batch_bytes == MAX_BATCH_BYTES


def test_the_shipped_configuration_is_valid() -> None:
    """``conf/capture.yaml`` loads, and states the limit that is enforced."""
    file = Path(__file__).parents[2] / "conf" / "capture.yaml"
    config = load_capture_config(file)
    assert f"at most {MAX_BATCH_BYTES}," in file.read_text()
    assert config.max_batch_bytes == DEFAULT_MAX_BATCH_BYTES
    assert (config.postgres.slot, config.intervals.heartbeat_ms, config.max_batch_size) == ("shapes", None, 100)
