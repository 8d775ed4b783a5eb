"""Random damage to real events: to their bytes, to their JSON's structure, and to how values are written."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final

from flushtracker.events.registry_events import RegistryEntry, SourceEntry
from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent, SnapshotRow
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.wal.changes import Commit, LogItem, Operation, Row
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.sample_entries import AGAIN, FULL, PARTITION, PLAIN, TABLE
from tests.support.sample_source import SampleSource

Samples = Callable[[Random], Iterator[tuple[str, str]]]
"""Events without end, each with the name of its stream."""

_NUMBERS: Final = (
    *("0", "-0", "1", "-1", "1.0", "1e0", "1E+2", "01", "+1", ".5", "1.", "0x1", "1_0", "NaN", "Infinity", "-Infinity"),
    *("1e999", "-1e-999", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 30, "١"),
)
_STRINGS: Final = (
    *('""', '"a"', "'a'", '"a\\ud800"', '"\\udc00a"', '"\\ud83d\\ude42"', '"\\ude42\\ud83d"', '"🙂"', '"a\\u0000"'),
    *('"a\\nb"', '"a\nb"', '"a\tb"', '"\\x41"', '"\\u00e"', '"\\u+0e9"', '"\\u00E9"', '"\\/"', '"\x7f"', '"\u2028"'),
    *('"a\\u0085"', '"\\\\ud800"', '"flushed"', '"removed"', '"{\\"v\\":-7}"', '"}],"'),
)
_OTHERS: Final = (
    *("null", "true", "false", "True", "nul", "{}", "[]", "[{}]", "[null]", '{"a":1,"a":2}', "undefined", ""),
)
_VALUES: Final = (*_NUMBERS, *_STRINGS, *_OTHERS)
_TAILS: Final = (
    " ",
    "\n",
    "\t",
    "\r",
    "\f",
    "\v",
    "\xa0",
    "\ufeff",
    "x",
    "{}",
    ",",
    "]",
    "}",
    "//a",
    "/**/",
    "#",
    "\0",
)
_TAILS_WITH_MARK: Final = (*_TAILS, ',{"v":-7}', "null", ";")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[{}\[\]:,]')
_KEY: Final = re.compile(r'"([a-z_]+)"(?=:)')


def sample_events(rng: Random) -> Iterator[tuple[str, str]]:
    """Without end: an event of ``fragments`` or ``flushes``, with the stream's name."""
    while True:
        source = SampleSource(f"7301/{rng.randint(1, 3)}/shapes")
        lsn = rng.choice([2000, 2**62])
        ops = {shape: rng.choice([None, 0, 4, 5]) for shape in rng.sample(["users", 'q"}x{', "naïve🙂", "a\\b"], 2)}
        yield "fragments", source.fragment(lsn, 4, ops, commit=rng.random() < 0.5).to_json()
        yield "fragments", source.keepalive(lsn + 100).to_json()
        yield "flushes", source.flushed(rng.choice(["users", "naïve🙂"]), lsn, 4).to_json()
        yield "flushes", source.removed("orders", lsn).to_json()


def sample_changes(rng: Random) -> Iterator[tuple[str, str]]:
    """Without end: events of ``shape_changes``, with the stream's name."""
    while True:
        lsn, op = rng.choice([2000, 2**62]), rng.choice([0, 4])
        rows: list[Row | None] = [None, {"id": "7", "naïve🙂": None}, {}, {'q"}x{': "a\nb"}]
        operations: list[tuple[Operation, str | None]] = [("insert", "k"), ("update", None), ("delete", "k")]
        operations += [("truncate", None), ("truncate_partition", '"public"."t"/7')]
        items = [
            LogItem(LogOffset(lsn, op + i), *rng.choice(operations), *rng.sample(rows, 2))
            for i in range(rng.choice([0, 1, 2]))
        ]
        event = ShapeChangesEvent(
            source="7301/1/shapes",
            shape_id=rng.choice(["users", 'q"}x{', "naïve🙂", "a\\b"]),
            xid=42,
            follows=rng.choice([LogOffset(lsn - 1, 0), LogOffset(-1, 0), LogOffset(5, 2**63 - 1)]),
            last_log_offset=LogOffset(lsn, op),
            start=rng.random() < 0.5,
            has_begin=rng.random() < 0.5,
            commit=rng.choice([None, Commit("2026-01-01T00:00:00.000000Z", lsn + 24)]),
            items=tuple(items),
            incarnation=rng.choice([1, 1, 2, 10**17]),
            schema=rng.choice([None, "5ca1ab1e"]),
        )
        yield "shape_changes", event.to_json()


def sample_entries(rng: Random) -> Iterator[tuple[str, str]]:
    """Without end: entries of ``shapes``, with the stream's name."""
    entries: list[RegistryEntry] = [
        FULL,
        FULL.condensed(),
        AGAIN,
        AGAIN.condensed(),
        PLAIN,
        TABLE,
        PARTITION,
        replace(PARTITION, joined=None, left_at=7, lost_with=9, empty_at=8),
    ]
    entries += [SourceEntry("7/1/s", LogOffset(99, 0), "v7"), SourceEntry("7/1/s", LogOffset(-1, 0), "größe", 2)]
    history = TimelineHistory(3, ((1, 5), (2, 5)))
    claim = SourceEntry("7/1/s", LogOffset(9, 0), "v", history=history, holder="5f", published_lsn=-1)
    taken_to = TimelineHistory(4, ((1, 5), (2, 5), (3, 9)))
    entries += [
        replace(claim, ends=((0,), (7, 8))),
        replace(claim, claimed=taken_to, system_id="8", earlier_timelines=2, sealed="5ea1"),
    ]
    while True:
        yield "shapes", rng.choice(entries).to_json()


def sample_snapshots(rng: Random) -> Iterator[tuple[str, str]]:
    """Without end: events of ``snapshots``, with the stream's name."""
    while True:
        rows = [SnapshotRow("k", {"id": "7", "naïve🙂": None}), SnapshotRow("größe", {})]
        unseen = rng.choice([(), ((7, 7),), ((0, 3), (5, 2**32 - 1))])
        end = SnapshotEnd(3, ContainedTransactions(rng.choice([0, 2**62]), unseen))
        yield (
            "snapshots",
            SnapshotEvent(
                source="7301/1/shapes",
                shape_id=rng.choice(["users", 'q"}x{', "naïve🙂", "a\\b"]),
                attempt=rng.choice([1, 2**62]),
                number=rng.choice([0, 4]),
                rows=tuple(rng.sample(rows, rng.choice([0, 1, 2]))),
                end=rng.choice([None, end]),
                incarnation=rng.choice([1, 1, 2, 2**62]),
            ).to_json(),
        )


def mutated(rng: Random, event: str) -> bytes:
    """The event with one to three random changes; it may well still be an event."""
    data = event.encode()
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
        data = rng.choice(_MUTATIONS)(rng, data)
    return data


def _flip_byte(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _flip_bit(rng: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _cut(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randrange(12) :]


def _repeat(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at : at + rng.randrange(60)] + data[at:]


def _insert_space(rng: Random, data: bytes) -> bytes:
    return _insert(rng, data, rng.choice(_TAILS))


def _surround(rng: Random, data: bytes) -> bytes:
    extra = rng.choice(_TAILS_WITH_MARK).encode()
    return extra + data if rng.random() < 0.3 else data + extra


def _replace_token(rng: Random, data: bytes) -> bytes:
    return _replaced(rng, data, _TOKEN, lambda _: rng.choice(_VALUES))


def _escape_key(rng: Random, data: bytes) -> bytes:
    def escaped(name: str) -> str:
        at = rng.randrange(1, len(name) - 1)
        return f"{name[:at]}\\u{ord(name[at]):04{rng.choice('xX')}}{name[at + 1 :]}"

    return _replaced(rng, data, _KEY, escaped)


def _repeat_key(rng: Random, data: bytes) -> bytes:
    """Give an object a key of the event again, with the same or another value."""
    name = rng.choice(_KEY.findall(data.decode(errors="replace")) or ["v"])
    return _replaced(rng, data, re.compile(r"\{"), lambda _: f'{{"{name}":{rng.choice(_VALUES)},')


def _restructure(rng: Random, data: bytes) -> bytes:
    """Move, copy, drop or nest a value of the parsed event, at any depth."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return data
    nodes = list(_nodes(event))
    if not nodes:
        return data
    parent, key = rng.choice(nodes)
    other_parent, other_key = rng.choice(nodes)
    match rng.randrange(4):
        case 0:
            del parent[key]
        case 1:
            parent[key] = json.loads(json.dumps(other_parent[other_key]))
        case 2:
            parent[key] = rng.choice([[parent[key]], {"event": parent[key]}, {str(key): parent[key]}])
        case _:
            event = rng.choice([[event], {"event": event}, event])
    return json.dumps(event, ensure_ascii=rng.random() < 0.5).encode(errors="replace")


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each value inside ``value``, as its container and its key or index."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _nodes(value[key])


def _insert(rng: Random, data: bytes, text: str) -> bytes:
    """Put ``text`` between two tokens."""
    ends = [found.end() for found in _TOKEN.finditer(data.decode("latin-1"))]
    at = rng.choice(ends or [0])
    return data[:at] + text.encode() + data[at:]


def _replaced(rng: Random, data: bytes, pattern: re.Pattern[str], new: Callable[[str], str]) -> bytes:
    text = data.decode("latin-1")
    found = list(pattern.finditer(text))
    if not found:
        return data
    old = rng.choice(found)
    return data[: old.start()] + new(old[0]).encode() + data[old.end() :]


_MUTATIONS: Final[tuple[Callable[[Random, bytes], bytes], ...]] = (
    *(_flip_byte, _flip_bit, _cut, _repeat, _insert_space, _surround, _replace_token, _replace_token),
    *(_escape_key, _repeat_key, _restructure),
)


_SPOILED: Final[tuple[object, ...]] = (None, True, -1, 0, 1, 2.5, 2**63 - 1, 2**63, "x", "", [], {}, [None])


def spoiled(event: str) -> list[str]:
    """An event and its malformed variants: each field removed, null, or of another type, at each depth."""
    texts = ["", "null", "[]", '"x"', "1", "{}", event, event + " ", " " + event, event[:-1], event.replace('"', "'")]
    for tail in (
        *("x", "{}", ",{}", "}", "]", ",", " ,x", "],[1]", "],[{}]", ',"a":1', '],"a":[{}', "]}"),
        *('}],"a":[{}]', "null"),
    ):
        texts += [event + tail, tail + event]
    texts += [event + event, f"{event},{event}"]
    fields = json.loads(event)

    def spoil(node: object, rebuild: object) -> None:
        assert callable(rebuild)
        items: list[tuple[object, object]] = []
        if isinstance(node, dict):
            items = list(node.items())
        elif isinstance(node, list):
            items = list(enumerate(node))
        for key, value in items:
            for replacement in _SPOILED:
                texts.append(json.dumps(rebuild(key, replacement)))
            if isinstance(node, dict):
                texts.append(json.dumps(rebuild(key, ...)))
            spoil(value, lambda k, v, key=key, value=value: rebuild(key, _with(value, k, v)))

    spoil(fields, lambda key, value: _with(fields, key, value))
    return texts


def _with(node: object, key: object, value: object) -> object:
    """A copy of a JSON object or list with one value replaced, or without it where ``value`` is ``...``."""
    if isinstance(node, dict):
        return {k: (value if k == key else v) for k, v in node.items() if k != key or value is not ...}
    assert isinstance(node, list)
    return [value if index == key else item for index, item in enumerate(node)]
