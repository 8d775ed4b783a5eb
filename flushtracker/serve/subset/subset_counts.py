"""``SubsetCounts``: what the reads of subsets have cost, for the server's status."""

import threading


class SubsetCounts:
    """Sums over the reads that have ended, also those that failed; for any thread."""

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
