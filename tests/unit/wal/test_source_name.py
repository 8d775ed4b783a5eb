"""``SourceName``: its text, and one answer for all who ask which source of a slot is current."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.operate.status.overview import source_of
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1)
NUMBERS = st.integers(1, 2**32 - 1)
NAMES = st.builds(SourceName, PARTS, NUMBERS, PARTS, st.just(0) | NUMBERS)

# Few of each part, so that names of one slot meet, and some that only look like a name.
TEXTS = st.builds(
    "{}/{}/{}{}".format,
    st.sampled_from(["7301", "recording", ""]),
    st.sampled_from(["1", "2", "10", "02", "x", ""]),
    st.sampled_from(["shapes", "other", ""]),
    st.sampled_from(["", "/1", "/2", "/10", "/02", "/0", "/x", "/", "/1/2"]),
)


@given(NAMES)
def test_a_name_is_read_as_it_is_written(name: SourceName) -> None:
    """And its parts are never cut elsewhere."""
    assert SourceName.parse(str(name)) == name


@given(TEXTS | st.text(st.sampled_from("7/sx")))
def test_no_text_is_read_as_another_name(text: str) -> None:
    """What is persisted under one text is not taken for that under another one."""
    name = SourceName.parse(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize("text", ["", "shapes", "7301/shapes", "7301/1/", "7301/1/s/1/2", "7301/1/s\n/", "/1/s"])
def test_a_text_of_another_form_belongs_to_no_slot(text: str) -> None:
    """A producer of one's own may name its source so."""
    assert SourceName.parse(text) is None


def test_a_number_of_any_length_is_no_error() -> None:
    """Python refuses to convert one of thousands of digits."""
    assert SourceName.parse(f"7301/{'9' * 5000}/shapes") is None


@given(st.lists(TEXTS, max_size=12))
@example(["7301/1/shapes", "7301/2/shapes/x"])
def test_status_and_the_registry_agree_on_the_current_source(sources: list[str]) -> None:
    """A source whose name only began like one of the slot was current to ``remove-shape``, and not to ``status``."""
    live = {source for (source,) in _look(sources).live_ids}
    systems = {source.split("/")[0] for source in sources}
    chosen = {source_of("shapes", system, sources) for system in systems} - {None}
    assert chosen == live
    assert source_of("shapes", None, sources) == (live.pop() if len(live) == 1 else None)


def _look(sources: list[str]) -> RegistryReader:
    """The registry of sources that have one shape each, named as its source."""

    class Reader:
        def __init__(self, _: KafkaConfig) -> None:
            """The topic is below."""

        def values(self, _: str) -> Iterator[bytes]:
            for source in sources:
                definition = ShapeDefinition(source, ("public", "t"), snapshot=False)
                yield ShapeEntry(source, definition, 1, LogOffset(1, 0)).to_json().encode()

        def close(self) -> None:
            """Nothing is open."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flushtracker.operate.shapes.registry_reader.TopicReader", Reader)
        return RegistryReader(KafkaConfig("localhost:9092", Topics("f", "l", "s", "c")), "shapes")
