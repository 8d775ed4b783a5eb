"""``Background``: what goes on in threads beside a test, until its block ends, and whose error the test raises."""

from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

_Kind = TypeVar("_Kind", bound="Background")


class Background:
    """A context manager; each of ``plays`` runs in a thread of its own, and must end soon once ``stopping`` is set.

    The first error is that of the block, too, if the block itself has none.
    """

    def __init__(self, *plays: Callable[[], object]) -> None:
        self.stopping = Event()
        self.failure: BaseException | None = None
        self._threads = [Thread(target=self._run, args=(play,), daemon=True) for play in plays]

    def __enter__(self: _Kind) -> _Kind:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.join()
        if kind is None:
            self.raise_failure()

    @property
    def is_running(self) -> bool:
        """Whether any thread runs; one may end by itself."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Where there is no block."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Stop, after what is being done."""
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Stop before the block ends, and raise the error, if any."""
        self.join()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error that has ended a thread, if any."""
        if self.failure is not None:
            raise self.failure

    def _run(self, play: Callable[[], object]) -> None:
        try:
            play()
        except BaseException as error:  # noqa: BLE001  raised in the test's thread
            self.failure = self.failure or error
