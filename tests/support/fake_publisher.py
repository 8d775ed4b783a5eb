"""A stand-in for ``KafkaPublisher`` that confirms records only when the test asks for it."""

from collections.abc import Callable

from flushtracker.errors import FlushtrackerError


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
