"""A source's chain by plain definition: one link after the other. What ``FragmentChain`` is compared with."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from flushtracker.tracking.chain_links import Link
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import FIRST_LISTED, is_list


class PlainChain:
    """``failure`` is the link at which the chain has a gap, with the cursor that it does not follow."""

    def __init__(self, cursor: LogOffset | None = None) -> None:
        self.cursor = cursor
        self.last_seen: LogOffset | None = None
        self.place = ""
        self.operations: LogOffset | None = None
        """How far operations have been read, if a list part moved the cursor."""
        self.failure: tuple[Link, LogOffset | None] | None = None

    def extend(self, links: Iterable[Link]) -> None:
        """Apply one micro-batch; after a failure only ``failure`` has changed."""
        ordered = sorted(links, key=lambda link: link.predecessor)
        if not ordered:
            return
        cursor, last_seen, place = self.cursor, self.last_seen, self.place
        if cursor is None:
            first = min(ordered, key=lambda link: (link.follows, not link.start))
            if not first.start:
                self.failure = first, None
                return
            cursor = first.predecessor
        before = cursor
        for link in ordered:
            if link.predecessor > cursor:
                self.failure = link, cursor
                return
            reached = link.last_log_offset.reached(is_commit=link.is_commit)
            if reached > cursor:
                cursor, place = reached, link.place
            if link.is_commit and (last_seen is None or link.last_log_offset > last_seen):
                last_seen = link.last_log_offset
        operations = self._read(ordered, self.operations or before)
        if self.failure is None:
            self.cursor, self.last_seen, self.place = cursor, last_seen, place
            self.operations = operations if is_list(cursor.op_offset) else None

    def _read(self, ordered: Iterable[Link], operations: LogOffset) -> LogOffset:
        """How far operations have been read after the links; what follows one must not follow more than that."""
        for link in ordered:
            if link.predecessor.op_offset < FIRST_LISTED and link.predecessor > operations and self.failure is None:
                self.failure = link, operations
            if link.is_commit or not is_list(link.last_log_offset.op_offset):
                operations = max(operations, link.last_log_offset.reached(is_commit=link.is_commit))
        return operations


def _links(rng: Random, follows: LogOffset, last: LogOffset, *, is_start: bool, is_commit: bool) -> list[Link]:
    """A fragment, or some list parts in its place, perhaps without the last."""
    if not is_commit or rng.random() < 0.6:
        return [Link(follows, last, is_start, is_commit, "")]
    ends = [
        LogOffset(last.tx_offset, FIRST_LISTED + number) for number in sorted(rng.sample(range(4), rng.randint(1, 3)))
    ]
    parts = [Link(before, end, False, end == ends[-1], "") for before, end in pairwise([follows, *ends])]  # noqa: FBT003
    parts[0] = parts[0]._replace(start=is_start)
    return parts[: len(parts) - (rng.random() < 0.3)]


def random_links(rng: Random, count: int) -> list[list[Link]]:
    """Batches of links of one stream: resent in other cuts, with list parts, some lost, in any order within a batch."""
    offsets = [LogOffset(rng.choice([50, 2**62]), 0)]
    while len(offsets) < count:
        tx, op = offsets[-1]
        offsets.append(LogOffset(tx + rng.choice([24, 40_000]), 0) if rng.random() < 0.5 else LogOffset(tx, op + 2))
    stream: list[Link] = []
    at = 0
    while at + 1 < len(offsets):
        end = min(len(offsets) - 1, at + rng.randint(1, 3))
        is_commit = end + 1 < len(offsets) and offsets[end + 1].tx_offset > offsets[end].tx_offset
        is_start = rng.random() < 0.1 or not stream
        links = _links(rng, offsets[at], offsets[end], is_start=is_start, is_commit=is_commit)
        stream += [link._replace(place=f"p{len(stream) + n}") for n, link in enumerate(links) if rng.random() < 0.97]
        at = max(0, end - rng.randint(0, 3)) if rng.random() < 0.1 else end
    batches: list[list[Link]] = [[] for _ in range(rng.randint(1, 6))]
    numbers = sorted(rng.randrange(len(batches)) for _ in stream)
    for number, link in zip(numbers, stream, strict=True):
        batches[number].append(link)
    for batch in batches:
        rng.shuffle(batch)
    return batches
