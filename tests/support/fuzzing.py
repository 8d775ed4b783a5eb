"""Mutated inputs for everything that reads bytes from outside, and what each may do: nothing but raise its own errors.

Each input is a real sample, or two spliced, after up to four seeded changes. A reader may accept it or raise one of the
errors that it names; the message must be short and printable on one line, so that a log and a terminal can take it.
"""

import json
import re
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.errors import ConfigError, DecodeError, FlushtrackerError
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.files.recording import read_recording
from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.shapes.shapes_file import read_shapes
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import decode
from tests.unit.test_persisted_formats import SHAPE_ENTRY
from tests.unit.test_stream_events import CHANGES, FLUSH, FRAGMENT

ROOT: Final = Path(__file__).parents[2]
MAX_BYTES: Final = 4096
"""Longer inputs are cut, so that the bound on time is one on each input."""
MAX_SECONDS: Final = 0.1
MAX_MEMORY: Final = 2_000_000, 500
"""Bytes that reading may take: so many, and so many for each byte of the input."""

_JSON_TOKENS: Final = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"\\u0000",
        b'"\\ud800"',
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
    ),
    *(b"1e999", b"-0", b"1.0", b"9223372036854775807", b"9223372036854775808", b"9" * 400, b"[" * 2000, b'{"a":' * 500),
    *(b"\xff", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b'"v":1,', b'"source":"x",', b'""', b"[]", b"{}", b"-1"),
]
_YAML_TOKENS: Final = [
    *(b"- ", b"? ", b": ", b"\n", b"\t", b"  ", b"#", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"!x "),
    *(b"|\n", b">\n", b"---\n", b"...\n", b"%YAML 9.9\n", b"[", b"]", b"{", b"}", b"'", b'"', b"~", b"yes", b"0x10"),
    *(b"1_000", b"1e999", b"9" * 400, b"2026-01-01", b"2026-99-99", b"!!binary x", b"!!timestamp x", b"${", b"${HOME}"),
    *(b"[" * 500, b"- " * 500, b"{a: " * 300, b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"\\ud800"'),
    *(b'\n"\\n": 1\n', b'\n"\\e[1m": 1\n', b'\n"\\ud800": 1\n', b"\n? " + b"x" * 900 + b"\n: 1\n", b"*" + b"x" * 900),
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
]
_BYTE_TOKENS: Final = [b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00", b"n", b"u", b"t", b"b"]


@dataclass(frozen=True)
class Target:
    """One reader: samples of what it reads, tokens that mean something to it, and the error that it may raise."""

    name: str
    samples: Sequence[bytes]
    tokens: Sequence[bytes]
    read: Callable[[bytes], object]
    error: type[FlushtrackerError]


@dataclass(frozen=True)
class Finding:
    """An input on which a reader broke its contract."""

    target: str
    data: bytes
    fact: str

    def __str__(self) -> str:
        return f"{self.target}: {self.fact}\n    {self.data!r}"


def targets(folder: Path) -> list[Target]:
    """Every reader; those of files read one in ``folder``."""
    messages = [message.data for message in read_recording(ROOT / "tests" / "recording")][:2000]
    events: list[tuple[str, Any, Callable[[bytes], object]]] = [
        ("fragment", FRAGMENT, FragmentEvent.from_json),
        ("flush notification", FLUSH, FlushNotification.from_json),
        ("shape changes", CHANGES, ShapeChangesEvent.from_json),
        ("registry entry", json.loads(SHAPE_ENTRY), parse_registry_entry),
    ]
    files: list[tuple[str, list[str], Callable[[Path], object]]] = [
        ("shapes.yaml", ["shapes.yaml"], read_shapes),
        ("job configuration", ["replay.yaml", "track_flushes.yaml", "cluster.yaml"], load_config),
        ("capture configuration", ["capture.yaml"], load_capture_config),
        ("topics configuration", ["kafka.yaml"], load_kafka_config),
    ]
    found = [
        Target("pgoutput message", sorted(set(messages)), _BYTE_TOKENS, decode, DecodeError),
        Target("pgoutput transaction", [_joined(messages[:40])], _BYTE_TOKENS, _convert, DecodeError),
    ]
    for name, sample, read in events:
        found.append(Target(name, [json.dumps(sample).encode()], _JSON_TOKENS, read, DecodeError))
    for name, names, read_path in files:
        texts = [_text(ROOT / "conf" / file) for file in names]
        found.append(Target(name, texts, _YAML_TOKENS, _of_file(folder, read_path), ConfigError))
    return found


def mutated(rng: Random, target: Target) -> bytes:
    """A sample, or two spliced, after one to four changes."""
    data = bytearray(rng.choice(target.samples))
    if rng.random() < 0.1:
        other = rng.choice(target.samples)
        data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.randint(1, 4)):
        _change(rng, data, target.tokens)
    return bytes(data[:MAX_BYTES])


def _change(rng: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice([1, 1, 2, 4, 16, 100]))
    kind = rng.randrange(6)
    if kind == 0 and start < len(data):
        data[start] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[start:end] = rng.randbytes(end - start)
    elif kind == 2:
        del data[start:end]
    elif kind == 3:
        data[start:start] = data[start:end] * rng.choice([1, 2, 20])
    elif kind == 4:
        data[start:start] = rng.choice(tokens)
    else:
        data[start:end] = rng.choice(tokens)


def check(target: Target, data: bytes) -> Finding | None:
    """Read ``data``; a finding if anything but the target's error is raised."""
    fact = _broken(target, data)
    return None if fact is None else Finding(target.name, data, fact)


def check_time(target: Target, data: bytes) -> Finding | None:
    """As :func:`check`; a finding, too, if it takes longer than the limit three times in a row, in CPU time."""
    took_s = []
    for _ in range(3):
        started = time.thread_time()
        fact = _broken(target, data)
        took_s.append(time.thread_time() - started)
        if fact is not None:
            return Finding(target.name, data, fact)
        if took_s[-1] <= MAX_SECONDS:
            return None
    return Finding(target.name, data, f"takes {min(took_s):.3f} s")


def check_memory(target: Target, data: bytes) -> Finding | None:
    """As :func:`check`; a finding, too, if it takes more memory than the limit."""
    tracemalloc.start()
    try:
        fact = _broken(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if fact is None and peak > MAX_MEMORY[0] + MAX_MEMORY[1] * len(data):
        fact = f"takes {peak} bytes for {len(data)}"
    return None if fact is None else Finding(target.name, data, fact)


def _broken(target: Target, data: bytes) -> str | None:
    try:
        target.read(data)
    except target.error as error:
        message = str(error)
        if not message.isprintable():
            return f"the message cannot be printed on one line: {message!r}"
        return None if len(message) < 2000 else f"the message has {len(message)} characters"
    except Exception as error:  # noqa: BLE001  what is looked for
        return f"raises {type(error).__name__}: {error}"
    return None


def _joined(messages: Sequence[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def _convert(data: bytes) -> None:
    """Messages with their lengths, through decoder and converter."""
    converter = FragmentConverter(max_batch_size=3)
    position = 0
    while position < len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        converter.handle(decode(data[position + 2 : end]))
        converter.check_invariants()
        position = end


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
