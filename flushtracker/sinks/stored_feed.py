"""What is stored of Kafka sinks, as JSON in a topic of its own, in the transaction of the records that it is after."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from flushtracker.events.event_json import EventReader, dump_json
from flushtracker.events.structs import VERSION, Version

Position = Annotated[int, Meta(ge=0)]
"""A Kafka offset, an LSN or the number of an operation."""


class StoredMark(Struct):
    """A mark of :class:`flushtracker.sinks.group_progress.GroupProgress`; a span is its first position and its end."""

    offset: tuple[Position, Position]
    spans: dict[int, tuple[Position, Position]]


class StoredFeed(Struct, kw_only=True):
    """A shape: what is produced, and how far its groups were. ``snapshot`` is what its snapshot contains.

    ``topic_id`` is Kafka's, of the topic that has the records; ``old_topics`` have those of earlier incarnations.
    """

    v: Version = VERSION
    source: str
    shape_id: str
    incarnation: Annotated[int, Meta(ge=1)]
    topic: str
    topic_id: str = ""
    old_topics: tuple[str, ...] = ()
    cursor: tuple[Position, Position] | None = None
    snapshot: tuple[Position, tuple[tuple[Position, Position], ...]] | None = None
    after_truncate: bool = False
    marks: list[StoredMark] = []
    counted: dict[str, dict[int, Position]] = {}
    ends: dict[int, Position] = {}

    @property
    def key(self) -> bytes:
        return dump_json((self.source, self.shape_id)).encode()

    def to_json(self) -> bytes:
        return dump_json(self).encode()


class StoredPositions(Struct):
    """From where a writer's sinks are to read the topic of shape changes, by partition."""

    positions: dict[int, Position]
    writer: str
    v: Version = VERSION

    @property
    def key(self) -> bytes:
        return dump_json(("positions", self.writer)).encode()

    def to_json(self) -> bytes:
        return dump_json(self).encode()


POSITIONS_START: Final = b'{"positions":'
"""How the positions begin, and no shape."""
_FEEDS: Final = EventReader("state of a Kafka sink", StoredFeed)
_POSITIONS: Final = EventReader("state of Kafka sinks", StoredPositions)


def read_feed(text: bytes) -> StoredFeed:
    """Raises ``DecodeError``."""
    return _FEEDS.read(text)


def read_positions(text: bytes) -> StoredPositions:
    """Raises ``DecodeError``."""
    return _POSITIONS.read(text)
