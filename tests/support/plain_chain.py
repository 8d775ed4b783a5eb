"""A source's chain by plain definition: one link after the other. What ``FragmentChain`` is compared with."""

from collections.abc import Iterable
from random import Random

from flushtracker.tracking.chain_links import Link
from flushtracker.wal.log_offset import LogOffset


class PlainChain:
    """``failure`` is the link at which the chain has a gap, with the cursor that it does not follow."""

    def __init__(self, cursor: LogOffset | None = None) -> None:
        self.cursor = cursor
        self.last_seen: LogOffset | None = None
        self.place = ""
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
        for link in ordered:
            if link.predecessor > cursor:
                self.failure = link, cursor
                return
            reached = link.last_log_offset.reached(is_commit=link.is_commit)
            if reached > cursor:
                cursor, place = reached, link.place
            if link.is_commit and (last_seen is None or link.last_log_offset > last_seen):
                last_seen = link.last_log_offset
        self.cursor, self.last_seen, self.place = cursor, last_seen, place


def random_links(rng: Random, count: int) -> list[list[Link]]:
    """Batches of links of one stream: resent in other cuts, some lost, in any order within a batch."""
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
        if rng.random() < 0.97:
            stream.append(Link(offsets[at], offsets[end], is_start, is_commit, f"p{len(stream)}"))
        at = max(0, end - rng.randint(0, 3)) if rng.random() < 0.1 else end
    batches: list[list[Link]] = [[] for _ in range(rng.randint(1, 6))]
    numbers = sorted(rng.randrange(len(batches)) for _ in stream)
    for number, link in zip(numbers, stream, strict=True):
        batches[number].append(link)
    for batch in batches:
        rng.shuffle(batch)
    return batches
