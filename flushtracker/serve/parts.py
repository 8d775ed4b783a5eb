"""``Parts``: what the server's answers are made of."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from flushtracker.config.serve_config import SubsetRules
from flushtracker.serve.cache import PageCache, StateCache
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.poller import Poller
from flushtracker.serve.precedence import Precedence
from flushtracker.serve.reads import LogReads
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.serve.tail.tail_pages import TailPages


class SubsetCounts:
    """What the ended reads of subsets have cost, also those that failed; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reads = self.rows = 0
        self.read_s = 0.0

    def add(self, rows: int, read_s: float) -> None:
        """Count a read that took ``read_s`` seconds and found so many rows."""
        with self._lock:
            self.reads += 1
            self.rows += rows
            self.read_s += read_s


@dataclass(frozen=True, slots=True)
class Parts:
    """The components used for answers."""

    poller: Poller
    reads: LogReads
    log_flights: SingleFlight
    row_flights: SingleFlight
    definition_flights: SingleFlight
    subset_flights: SingleFlight
    precedence: Precedence
    pages: PageCache
    states: StateCache
    tail_pages: TailPages | None = None
    on_demand: OnDemand | None = None
    subset_rules: SubsetRules = field(default_factory=SubsetRules)
    subset_counts: SubsetCounts = field(default_factory=SubsetCounts)

    @property
    def flights(self) -> tuple[SingleFlight, ...]:
        more = () if self.on_demand is None else self.on_demand.flights
        return self.log_flights, self.row_flights, self.definition_flights, self.subset_flights, *more

    def log_flights_for(self, seen: SeenShape) -> SingleFlight:
        """The threads that read this shape's log for clients."""
        return self.log_flights if seen.selection is None or self.on_demand is None else self.on_demand.log_flights

    def check_for(self, seen: SeenShape, check: Callable[[], None]) -> Callable[[], None]:
        """What a read for clients of this shape calls between its steps."""
        return check if seen.selection is None else self.precedence.standing_back(check)

    def answering(self, seen: SeenShape) -> AbstractContextManager[None]:
        """Enter this while a client waits for a read of this shape's log."""
        return nullcontext() if seen.selection is not None else self.precedence.answering()

    def row_flights_for(self, seen: SeenShape) -> SingleFlight:
        """The threads that read this shape's rows for clients."""
        return self.row_flights if seen.selection is None or self.on_demand is None else self.on_demand.row_flights
