"""Registry entries: written and read without loss, and parsed strictly."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.registry_events import (
    PartitionEntry,
    RegistryEntry,
    SourceEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.sample_entries import AGAIN, FULL, PARTITION, PLAIN, TABLE

LEAST = TableEntry(
    "7/1/s",
    TableBinding(
        1,
        ("a", "b"),
        (KeyBinding(1, ()),),
        (ColumnBinding(1, "c", 1, -1, 0),),
        types=(TypeBinding(1, "a", "t", "composite", parts=(1,), labels=(EnumLabel(1, "", 0),)),),
    ),
)
"""A table with the least value of every number."""


@pytest.mark.parametrize(
    "entry",
    [
        *(
            FULL,
            FULL.condensed(),
            replace(PLAIN, removed_at=LogOffset(7, 0)).condensed(),
            AGAIN,
            AGAIN.condensed(),
            PLAIN,
            TABLE,
            LEAST,
            PARTITION,
            PartitionEntry("7/1/s", 1, PartitionBinding(1, ("a", "p"), 0, ""), 0),
            SourceEntry("7/1/s", LogOffset(99, 0), "7.1", 3),
        ),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", history=TimelineHistory(1), holder="5f", published_lsn=-1),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", holder="5f", published_lsn=7, ends=((), (0,))),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", holder="5f", claimed=TimelineHistory(2, ((1, 5),))),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", history=TimelineHistory(1), system_id="8", earlier_timelines=3),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", history=TimelineHistory(1), sealed="5ea1"),
        SourceEntry("7/1/s", LogOffset(99, 0), "7.1", history=TimelineHistory(3, ((1, 5), (2, 5)))),
        replace(PARTITION, joined=None, left_at=7),
        replace(PARTITION, left_at=7, lost_with=9),
        replace(PARTITION, joined=None, empty_at=7),
    ],
)
def test_an_entry_is_read_as_it_was_written(entry: RegistryEntry) -> None:
    """Every field survives, also an absent one."""
    assert parse_registry_entry(entry.to_json()) == entry


def _changed(path: str, value: object) -> str:
    fields: dict[str, Any] = json.loads(FULL.to_json())
    *outer, last = path.split(".")
    target = fields
    for name in outer:
        target = target[name]
    target[last] = value
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("type", "index", "Invalid value 'index' - at `$.type`"),
        ("shape_id", "", "Expected `str` of length >= 1 - at `$.shape_id`"),
        ("table_oid", "x", "Expected `int`, got `str` - at `$.table_oid`"),
        ("definition.table", "public", "Expected `array`, got `str` - at `$.definition.table`"),
        ("definition.table", ["public"], "Expected `array` of length 2 - at `$.definition.table`"),
        ("definition.columns", "id", "Expected `array | null`, got `str` - at `$.definition.columns`"),
        ("definition.replica", "nothing", "Invalid enum value 'nothing' - at `$.definition.replica`"),
        ("definition.flush.bytes", 0, "Expected `int` >= 1 - at `$.definition.flush.bytes`"),
        ("definition.snapshot", None, "Expected `bool`, got `null` - at `$.definition.snapshot`"),
        ("definition.keys_have_partitions", 1, "Expected `bool`, got `int` - at `$.definition.keys_have_partitions`"),
        ("starts_visible", 1, "Expected `bool`, got `int` - at `$.starts_visible`"),
        ("evicted_at_ms", -1, "Expected `int` >= 0 - at `$.evicted_at_ms`"),
        ("evicted_at_ms", "now", "Expected `int | null`, got `str` - at `$.evicted_at_ms`"),
        ("removed_at", {"tx_offset": 1}, "Object missing required field `op_offset` - at `$.removed_at`"),
        ("definition.incarnation", 0, "Expected `int` >= 1 - at `$.definition.incarnation`"),
        ("definition.incarnation", True, "Expected `int`, got `bool` - at `$.definition.incarnation`"),
        ("v", 5, "registry entry has v 5, this program reads v 1; upgrade"),
    ],
)
def test_a_malformed_field_is_named(path: str, value: object, message: str) -> None:
    """A damaged entry must not be taken for another one."""
    with pytest.raises(DecodeError, match=re.escape(message)):
        parse_registry_entry(_changed(path, value))


@pytest.mark.parametrize("key", ["snapshot", "starts_visible"])
def test_what_every_entry_has_is_not_guessed(key: str) -> None:
    """A shape's entry without it is refused, not taken for one without a snapshot."""
    text = FULL.to_json().replace(f'"{key}":true', '"other":true')
    with pytest.raises(DecodeError, match=f"^registry entry: Object missing required field `{key}`"):
        parse_registry_entry(text)


@pytest.mark.parametrize("switches", ['[{"timeline":2,"lsn":5}]', '[{"timeline":1,"lsn":5},{"timeline":1,"lsn":6}]'])
def test_timelines_out_of_order_are_refused(switches: str) -> None:
    """They would prove whatever they are compared with."""
    text = SourceEntry("7/1/s", LogOffset(99, 0), "7.1", history=TimelineHistory(2)).to_json()
    with pytest.raises(DecodeError, match=r"the history of timeline 2 has .*, expected ascending"):
        parse_registry_entry(text.replace('"switches":[]', f'"switches":{switches}'))


def test_the_entry_of_a_source_of_before_the_first_release_is_refused() -> None:
    """Each source has one, so its registry is not continued; shapes and tables had other keys then."""
    text = SourceEntry("7/1/s", LogOffset(99, 0), "7.1").to_json().replace(',"routing":1', "")
    with pytest.raises(DecodeError) as caught:
        parse_registry_entry(text)
    assert str(caught.value) == (
        "registry entry: Object missing required field `routing`: a version before 0.1.0 wrote the source's entry; "
        "start with new topics, tables and checkpoints"
    )


def test_a_source_without_its_publication_is_refused() -> None:
    """Capture could not tell whether it was altered."""
    text = SourceEntry("7/1/s", LogOffset(99, 0), "7.1").to_json().replace("publication", "other")
    with pytest.raises(DecodeError, match=r"^registry entry: Object missing required field `publication`$"):
        parse_registry_entry(text)


@pytest.mark.parametrize("key", ["keys", "toast", "schema_since", "types"])
def test_a_table_of_which_something_is_not_known_is_refused(key: str) -> None:
    """A change to it could not be seen."""
    text = TABLE.to_json()
    for place in range(text.count(f'"{key}"')):
        parts = text.split(f'"{key}"')
        damaged = f'"{key}"'.join(parts[: place + 1]) + '"other"' + f'"{key}"'.join(parts[place + 1 :])
        with pytest.raises(DecodeError, match=f"^registry entry: Object missing required field `{key}`"):
            parse_registry_entry(damaged)


def test_a_type_of_another_kind_is_refused() -> None:
    """A later release may have more kinds, which this one could not compare."""
    text = TABLE.to_json().replace('"kind":"enum"', '"kind":"tree"')
    with pytest.raises(DecodeError, match=r"Invalid enum value 'tree' - at `\$\.binding\.types\[0\]\.kind`$"):
        parse_registry_entry(text)
