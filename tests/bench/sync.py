"""What it costs to make commits durable: appends to the tables with and without syncs, in wall-clock time."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from unittest.mock import patch

from flushtracker.delta.acks.table import AckRow, AckTable
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.claim import LogClaim
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.table import create_shape_log
from tests.bench.measure import Table, medians
from tests.support.shape_log_rows import SOURCE, arrow, item

_ROWS = 4_000


def tables(*, quick: bool) -> Iterator[Table]:
    """Medians over appends to one table, in the folder for temporary files."""
    rounds = 3 if quick else 100
    rows = []
    for label, sync in (("synced", os.fsync), ("not synced", lambda _: None)):
        with TemporaryDirectory() as folder, patch.object(os, "fsync", sync):
            log_ms, ack_ms = medians(_appends(Path(folder), rounds))
        rows.append((label, f"{log_ms:.1f}", f"{ack_ms:.1f}"))
    yield Table("An append, ms", ("", f"{_ROWS:,} rows to the shape log", "an ack"), rows)


def _appends(folder: Path, rounds: int) -> Iterator[tuple[float, float]]:
    table, acks = create_shape_log(str(folder / "log")), AckTable(str(folder / "acks"))
    files, claim, now = LogFiles(table, {}), LogClaim(table), datetime.now(timezone.utc)
    rows = arrow([item((1000 + n, 0), "insert", str(n), {"id": str(n), "text": "x" * (n % 90)}) for n in range(_ROWS)])
    claim.take()
    acks.fence_others()
    for number in range(rounds):
        written = [WrittenFile(files.write(rows, None, is_change=True))]
        row = AckRow(SOURCE, number, 1 + number, 1 + number, 0, None, None, now)
        append, version = claim.append, claim.version_of(number)
        yield _ms(lambda: append(written, version)), _ms(lambda: acks.append(row))  # noqa: B023  called at once


def _ms(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return (perf_counter() - start) * 1000
