"""A stand-in for ``KafkaPublisher`` that confirms records only when the test asks for it."""

from collections.abc import Callable, Iterable

from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.source.prior_state import last_entries
from flushtracker.errors import FlushtrackerError
from flushtracker.events.registry_events import PartitionEntry, RegistryEntry, ShapeEntry, SourceEntry, TableEntry


class FakePublisher:
    """Logs what is published; :meth:`confirm` and :meth:`flush` confirm it."""

    gate: Callable[[], bool] | None = None

    def __init__(self) -> None:
        self.log: list[str] = []
        self.values: list[tuple[str, str | bytes]] = []
        self.deleted: list[tuple[str, str]] = []
        """The topics and keys of tombstones."""
        self.unconfirmed: list[Callable[[], None]] = []

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        assert topic
        assert key
        assert value != ""
        self.log.append(f"{topic} {key!s}")
        if value is None:
            self.deleted.append((topic, str(key)))
        else:
            self.values.append((topic, value))
        if on_confirmed is not None:
            self.unconfirmed.append(on_confirmed)

    def poll(self, timeout_s: float = 0.0) -> None:
        assert timeout_s == 0

    def flush(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.log.append("confirmed")
        self.confirm()

    def abandon(self, failure: FlushtrackerError) -> None:
        raise NotImplementedError(failure)

    def confirm(self) -> None:
        for confirmed in self.unconfirmed:
            confirmed()
        self.unconfirmed.clear()

    def registry(self) -> list[RegistryEntry]:
        """The last entry of each key that was published to the topic ``s``."""
        return last_entries(str(value).encode() for topic, value in self.values if topic == "s")


def source_entries(entries: Iterable[RegistryEntry]) -> SourceEntries:
    """These entries of one source, as another process finds them in the registry."""
    found = list(entries)
    return SourceEntries(
        next((entry for entry in found if isinstance(entry, SourceEntry)), None),
        tuple(entry for entry in found if isinstance(entry, ShapeEntry)),
        tuple(entry for entry in found if isinstance(entry, TableEntry)),
        tuple(entry for entry in found if isinstance(entry, PartitionEntry)),
    )
