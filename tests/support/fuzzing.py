"""Mutated inputs for everything that reads bytes from outside, and what each may do: nothing but raise its own errors.

Each input is a real sample, or two spliced, after up to four seeded changes. A reader may accept it or raise the error
that it names; the message must be short and printable on one line, so that a log and a terminal can take it. The
readers and their samples are in :mod:`tests.support.fuzz_targets`.
"""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from flushtracker.errors import FlushtrackerError

MAX_BYTES: Final = 4096
"""Longer inputs are cut, so that the bound on time is one on each input."""
MAX_S: Final = 0.1
"""The bound on the CPU time of reading an input."""
MAX_MEMORY: Final = 2_000_000, 500
"""Bytes that reading may take: so many, and so many for each byte of the input."""


@dataclass(frozen=True)
class Target:
    """One reader: samples of what it reads, tokens that mean something to it, and the error that it may raise."""

    name: str
    samples: Sequence[bytes]
    tokens: Sequence[bytes]
    read: Callable[[bytes], object]
    error: type[FlushtrackerError]
    weight: int
    """The target's share of a run's inputs, in hundredths: the cheaper to read, the more."""
    change: Callable[[Random, bytes], bytes] | None = None
    """What else may change a sample: its structure, not just its bytes. Used for half of the inputs."""


@dataclass(frozen=True)
class Finding:
    """An input on which a reader broke its contract."""

    target: str
    data: bytes
    fact: str

    def __str__(self) -> str:
        return f"{self.target}: {self.fact}\n    {self.data!r}"


def mutated(rng: Random, target: Target) -> bytes:
    """A sample, or two spliced, after one to four changes."""
    if target.change is not None and rng.random() < 0.5:
        return target.change(rng, rng.choice(target.samples))[:MAX_BYTES]
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
        if took_s[-1] <= MAX_S:
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
