"""The writers' state function without Spark: what it reads, and that nothing but its own errors leaves it."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from flushtracker.errors import START_ANEW, DecodeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.write.group_state import ENTRY, OUTPUT_SCHEMA, write_function
from flushtracker.shape_log.write.rows import NO_SHAPE
from flushtracker.shape_log.writer_group import WriterSettings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.event_mutations import mutated, sample_changes, sample_entries
from tests.support.seeds import first_seed
from tests.support.shape_transactions import SOURCE, Transactions

_ARROW = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
_SCHEMA = pa.schema([(each.name, _ARROW[each.dataType.simpleString()]) for each in OUTPUT_SCHEMA.fields])


class State:
    """Spark's state of one group."""

    def __init__(self) -> None:
        self.get: tuple[Any, ...] = ()
        self.timeout_ms: int | None = None

    @property
    def exists(self) -> bool:
        return bool(self.get)

    def update(self, value: tuple[Any, ...]) -> None:
        self.get = value

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802  Spark's name
        return 0

    def setTimeoutDuration(self, duration_ms: int) -> None:  # noqa: N802
        self.timeout_ms = duration_ms


Record = tuple[str, bytes | None, str]


def handled(records: Sequence[Record], group: str = "0", state: State | None = None) -> list[dict[str, Any]]:
    """What the function returns for the records of one group, as Spark receives it: through Arrow."""
    frame = pd.DataFrame(records, columns=["stream", "value", "place"])
    handle = write_function(WriterSettings(), 16)
    state = state or State()
    frames: Iterator[pd.DataFrame] = handle((SOURCE, group), [frame], state)  # type: ignore[arg-type]
    return [row for each in frames for row in pa.Table.from_pandas(each, schema=_SCHEMA).to_pylist()]


@pytest.mark.parametrize(("stream", "samples"), [("shape_changes", sample_changes), ("shapes", sample_entries)])
def test_event_of_a_newer_version_asks_for_an_upgrade_and_not_for_its_deletion(
    stream: str, samples: Callable[[Random], Iterator[tuple[str, str]]]
) -> None:
    """A release that knows the version reads it, so deleting the record would lose it."""
    _, event = next(samples(Random(7)))  # noqa: S311  a sample
    newer = json.dumps({**json.loads(event), "v": 5}).encode()
    (row,) = handled([(stream, newer, "file 7")], NO_SHAPE)
    assert (row["kind"], row["report"]) == ("error", "NewerEventError")
    assert row["reason"].startswith("file 7: ")
    assert row["reason"].endswith(
        f"; upgrade this program, then start it again; if a version before 0.1.0 wrote it, {START_ANEW}"
    )


def test_mutated_events_end_as_rows_or_as_one_decode_error_with_their_place() -> None:
    """Anything else would be a traceback of a Python worker, without the place."""
    rng = Random(first_seed())  # noqa: S311  reproducible inputs
    samples = (sample_changes(rng), sample_entries(rng))
    kinds: dict[str, int] = {}
    for number in range(1000):
        stream, event = next(samples[number % 2])
        rows = handled([(stream, mutated(rng, event), "file 7")], rng.choice(["0", NO_SHAPE]))
        for row in rows:
            kinds[row["kind"]] = kinds.get(row["kind"], 0) + 1
            if row["kind"] == "error":
                # A mutated version may be a greater one.
                newer = re.search(r"has v ([1-9]\d*), this program reads v 1", row["reason"])
                assert len(rows) == 1
                assert row["report"] == ("DecodeError" if newer is None else "NewerEventError")
                assert newer is None or int(newer[1]) > 1
                assert row["reason"].isprintable()
    assert min(kinds.get(kind, 0) for kind in ("error", "shape", "entry", "log_rows")) > 20, kinds


def test_registry_entry_that_is_not_utf_8_is_a_decode_error() -> None:
    """It was a traceback of the worker."""
    (row,) = handled([("shapes", b'{"v":1,"source":"\xff"}', "topic shapes")], NO_SHAPE)
    assert (row["kind"], row["report"]) == ("error", "DecodeError")
    assert row["reason"].startswith("topic shapes: registry entry cannot be read: ")


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00.1234567Z",
    ],
)
def test_commit_at_no_time_is_a_decode_error(text: str) -> None:
    """The log's column is a time; Spark would fail without naming the event's place, again and again."""
    stream = Transactions()
    stream.grow(1)
    *_, last = stream.events(list(stream.items))
    fields = json.loads(last.to_json())
    fields["commit"]["commit_timestamp"] = text
    (row,) = handled([("shape_changes", json.dumps(fields).encode(), "file 7")])
    assert row["report"] == DecodeError.__name__
    assert row["reason"].startswith(f"file 7: shape changes cannot be read: commit_timestamp is {text!r}, expected")


def test_entries_keep_the_order_of_their_places() -> None:
    """The last entry of a shape is the current one; Spark may read a batch's larger file first."""
    entry = ShapeEntry(SOURCE, ShapeDefinition("a", ("public", "t")), 1, LogOffset(900, 0))
    removed = replace(entry, removed_at=LogOffset(5000, 0))
    for first, second in (("f/000000000009.jsonl", "f/000000000010.jsonl"), ("p 0 offset 9", "p 0 offset 10")):
        rows = handled([("shapes", removed.to_json().encode(), second), ("shapes", entry.to_json().encode(), first)])
        assert [row["value"] for row in rows if row["kind"] == ENTRY] == [entry.to_json(), removed.to_json()]


def test_state_that_is_cut_off_is_a_state_error() -> None:
    """It says what to do; a traceback of the worker does not."""
    state = State()
    stream = Transactions()
    stream.grow(1)
    events = [("shape_changes", event.to_json().encode(), "file 7") for event in stream.events(list(stream.items))]
    handled(events, state=state)
    state.update((state.get[0][:-1], 16))
    (row,) = handled(events, state=state)
    assert (row["report"], row["reason"][:33]) == ("StateError", "the checkpoint's state is cut off")
