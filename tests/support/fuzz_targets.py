"""The readers of bytes from outside, each with real samples of what it reads, for :mod:`tests.support.fuzzing`."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.errors import ConfigError, DecodeError
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import RelationMessage, RowMessage, decode
from flushtracker.wal.row_reader import RowReader
from tests.support import event_mutations
from tests.support.fuzzing import MAX_BYTES, Target
from tests.support.sample_entries import SHAPE_ENTRY
from tests.support.sample_events import CHANGES, FLUSH, FRAGMENT

ROOT: Final = Path(__file__).parents[2]
_SAMPLES_OF_A_KIND: Final = 200

_JSON_TOKENS: Final = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b'"\\ud800"', b"null", b"true", b"NaN"),
    b"-Infinity",
    *(b"1e999", b"-0", b"1.0", b"9223372036854775807", b"9223372036854775808", b"9" * 400, b"[" * 2000, b'{"a":' * 500),
    *(b"\xff", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b'"v":1,', b'"source":"x",', b'""', b"[]", b"{}", b"-1"),
]
_YAML_TOKENS: Final = [
    *(b"- ", b"? ", b": ", b"\n", b"\t", b"  ", b"#", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"!x "),
    *(b"|\n", b">\n", b"---\n", b"...\n", b"%YAML 9.9\n", b"[", b"]", b"{", b"}", b"'", b'"', b"~", b"yes", b"0x10"),
    *(b"1_000", b"1e999", b"9" * 400, b"2026-01-01", b"2026-99-99", b"!!binary x", b"!!timestamp x", b"${", b"${HOME}"),
    *(b"[" * 500, b"[" * 4000, b"- " * 500, b"- " * 2000, b"{a: " * 300, b"{a: " * 1000, b"? " * 2000),
    *(b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xae", b'"\\ud800"', b'"\\x7f"'),
    *(b'\n"\\n": 1\n', b'\n"\\e[1m": 1\n', b'\n"\\ud800": 1\n', b"\n? " + b"x" * 900 + b"\n: 1\n", b"*" + b"x" * 900),
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
]
_BYTE_TOKENS: Final = [b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00", b"n", b"u", b"t", b"b"]

_RARE_MESSAGES: Final = [
    b"O" + bytes(8) + b"elsewhere\0",
    b"Y" + bytes(4) + b"public\0mood\0",
    b"M\1" + bytes(8) + b"prefix\0" + bytes([0, 0, 0, 7]) + b"content",
]
"""An Origin, a Type and a logical message, which the recording has not."""


def targets(folder: Path) -> list[Target]:
    """Every reader; those of files read one in ``folder``."""
    messages = [message.data for message in read_recording(ROOT / "tests" / "recording")]
    return [*_wal_targets(messages), *_event_targets(), *_file_targets(folder)]


def _wal_targets(messages: Sequence[bytes]) -> list[Target]:
    short = [message for message in messages if len(message) < MAX_BYTES // 2]
    of_kind: dict[bytes, list[bytes]] = defaultdict(list)
    for message in dict.fromkeys(short):
        if len(of_kind[message[:1]]) < _SAMPLES_OF_A_KIND:
            of_kind[message[:1]].append(message)
    rows = [row for kind in (b"I", b"U", b"D") for row in of_kind.pop(kind)]
    others = [*_RARE_MESSAGES, *(message for kind in of_kind.values() for message in kind)]
    relations = of_kind[b"R"]
    return [
        Target("pgoutput message", others, _BYTE_TOKENS, decode, DecodeError, 18),
        Target("pgoutput row", rows, _BYTE_TOKENS, _row_reader(relations), DecodeError, 18),
        Target(
            "pgoutput transaction",
            _transactions(relations, messages),
            _BYTE_TOKENS,
            _convert,
            DecodeError,
            weight=12,
            change=_rearranged,
        ),
    ]


def _event_targets() -> list[Target]:
    events: list[tuple[str, Any, Callable[[bytes], object]]] = [
        ("fragment", FRAGMENT, FragmentEvent.from_json),
        ("flush notification", FLUSH, FlushNotification.from_json),
        ("shape changes", CHANGES, ShapeChangesEvent.from_json),
        ("registry entry", json.loads(SHAPE_ENTRY), parse_registry_entry),
    ]
    return [
        Target(name, [json.dumps(sample).encode()], _JSON_TOKENS, read, DecodeError, 12, change=_changed_event)
        for name, sample, read in events
    ]


def _changed_event(rng: Random, data: bytes) -> bytes:
    return event_mutations.mutated(rng, data.decode())


def _file_targets(folder: Path) -> list[Target]:
    files: list[tuple[str, list[str], Callable[[Path], object]]] = [
        ("shapes.yaml", ["shapes.yaml"], read_shapes_file),
        ("job configuration", ["replay.yaml", "flushtracker.yaml"], load_config),
        ("capture configuration", ["flushtracker.yaml"], load_capture_config),
        ("topics configuration", ["flushtracker.yaml"], load_kafka_config),
    ]
    found = []
    for name, names, read in files:
        texts = [_text(ROOT / "conf" / file) for file in names]
        found.append(Target(name, texts, _YAML_TOKENS, _of_file(folder, read), ConfigError, 1))
    return found


def _row_reader(relations: Sequence[bytes]) -> Callable[[bytes], object]:
    """Decodes a row's message, and reads the row, too, if its relation is known."""
    readers: dict[int, RowReader] = {}
    for message in map(decode, relations):
        assert isinstance(message, RelationMessage)
        readers[message.relation.relation_id] = RowReader(message.relation)

    def read(data: bytes) -> object:
        message = decode(data)
        if isinstance(message, RowMessage) and message.relation_id in readers:
            return readers[message.relation_id].change(message, LogOffset(1, 0))
        return message

    return read


def _transactions(relations: Sequence[bytes], messages: Sequence[bytes]) -> list[bytes]:
    """All relations and one transaction, for each transaction short enough to be changed anywhere."""
    samples: list[bytes] = []
    begins = [index for index, message in enumerate(messages) if message[:1] == b"B"]
    for begin, end in pairwise([*begins, len(messages)]):
        joined = _joined([*relations, *messages[begin:end]])
        if len(joined) < MAX_BYTES * 3 // 4:
            samples.append(joined)
    return samples[:_SAMPLES_OF_A_KIND]


def _joined(messages: Iterable[bytes]) -> bytes:
    """Messages, each after its length."""
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def _split(data: bytes) -> Iterator[bytes]:
    """The inverse of :func:`_joined`."""
    position = 0
    while position < len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        yield data[position + 2 : end]
        position = end


def _rearranged(rng: Random, data: bytes) -> bytes:
    """The same messages, but for one to three that are missing, repeated or in another place."""
    messages = list(_split(data))
    for _ in range(rng.randint(1, 3)):
        index, place = rng.randrange(len(messages)), rng.randrange(len(messages))
        match rng.randrange(3):
            case 0:
                del messages[index]
            case 1:
                messages.insert(place, messages[index])
            case _:
                messages.insert(place, messages.pop(index))
    return _joined(messages)


def _convert(data: bytes) -> None:
    """Read joined messages as one stream."""
    converter = FragmentConverter(max_batch_size=3)
    for message in _split(data):
        converter.handle(decode(message))
        converter.check_invariants()


def _of_file(folder: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    file = folder / "input.yaml"

    def read_bytes(data: bytes) -> object:
        file.write_bytes(data)
        return read(file)

    return read_bytes


def _text(file: Path) -> bytes:
    """A file of ours without its comments, each variable replaced by one that is set."""
    lines = file.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.lstrip().startswith("#"))
    return re.sub(r"\$\{\w+", "${HOME", text).encode()
