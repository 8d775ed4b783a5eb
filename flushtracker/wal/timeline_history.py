"""``TimelineHistory``: the timelines in a server's WAL, and where each one ended.

A promotion begins a new timeline. Up to the *switch point* its WAL is that of the previous timeline; anything that the
old primary wrote after it is missing. A switch point is the end of a record. So the new timeline has exactly those
commit records of the old one that begin below it, and its own commits are not below it.
"""

from dataclasses import dataclass
from itertools import pairwise

from flushtracker.errors import DecodeError
from flushtracker.wal.lsn import parse_lsn


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """A timeline, and its ancestors: each with the LSN where the next one begins, in ascending order.

    Raises:
        ValueError: the timelines or the LSNs are not in order.
    """

    timeline: int
    switches: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        timelines = [0, *(timeline for timeline, _ in self.switches), self.timeline]
        lsns = [0, *(lsn for _, lsn in self.switches)]
        if not all(a < b for a, b in pairwise(timelines)) or not all(a <= b for a, b in pairwise(lsns)):
            raise ValueError(f"the history of timeline {self.timeline} has {self.switches!s:.200}, expected ascending")

    @classmethod
    def parse(cls, timeline: int, text: str) -> "TimelineHistory":
        """Read a timeline history file, as ``TIMELINE_HISTORY`` sends it.

        >>> TimelineHistory.parse(3, "1\\t0/3000148\\tno recovery target specified\\n\\n2\\t0/5000000\\tby hand\\n")
        TimelineHistory(timeline=3, switches=((1, 50331976), (2, 83886080)))

        Raises:
            DecodeError: it is malformed.
        """
        switches = []
        for line in text.splitlines():
            fields = line.partition("#")[0].split()
            if not fields:
                continue
            try:
                switches.append((int(fields[0]), parse_lsn(fields[1])))
            except (IndexError, ValueError, DecodeError) as error:
                raise DecodeError(f"the history of timeline {timeline} has the line {line!r:.100}") from error
        try:
            return cls(timeline, tuple(switches))
        except ValueError as error:
            raise DecodeError(str(error)) from error

    @property
    def ancestors(self) -> dict[int, int]:
        """The LSN where each earlier timeline ended, by timeline."""
        return dict(self.switches)

    def switch_from(self, earlier: "TimelineHistory") -> int | None:
        """The LSN where this history left ``earlier``; ``None`` if it does not continue it.

        >>> one, two = TimelineHistory(1), TimelineHistory(2, ((1, 500),))
        >>> three = TimelineHistory(3, ((1, 500), (2, 900)))
        >>> three.switch_from(one), three.switch_from(two), two.switch_from(three), two.switch_from(two)
        (500, 900, None, None)
        >>> three.switch_from(TimelineHistory(2, ((1, 499),))) is None
        True
        """
        before = tuple(switch for switch in self.switches if switch[0] < earlier.timeline)
        return self.ancestors.get(earlier.timeline) if before == earlier.switches else None
