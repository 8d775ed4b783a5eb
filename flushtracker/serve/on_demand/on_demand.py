"""``OnDemand``: the tables whose definitions are served on demand, and the threads that read for them.

They are not the threads of registered shapes, whose clients must not wait for any number of definitions.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flushtracker.serve.on_demand.kept_selections import KeptSelections
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.serve.table_view import TableView
from flushtracker.wal.changes import TableName

if TYPE_CHECKING:
    from flushtracker.serve.definitions import Target


@dataclass(frozen=True, slots=True)
class OnDemand:
    tables: frozenset[TableName]
    kept: "KeptSelections[Target]"
    log_flights: SingleFlight
    row_flights: SingleFlight

    @classmethod
    def of(cls, tables: frozenset[TableName], most_definitions: int) -> "OnDemand":
        """For at most so many definitions at once. Each may wait for a read of its log."""
        # Definitions share what this one thread has read last.
        logs = SingleFlight("on-demand-logs", 1, most_definitions)
        rows = SingleFlight("on-demand-rows", 1, spare=1)
        return cls(tables, KeptSelections(most_definitions), logs, rows)

    @property
    def flights(self) -> tuple[SingleFlight, SingleFlight]:
        return self.log_flights, self.row_flights

    def on_view(self, _: TableView) -> None:
        """Forget the definitions that nobody asks for any more, also while nobody asks for any."""
        self.kept.forget(time.monotonic())
