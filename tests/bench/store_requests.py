"""What tables on an object store request, and what a vacuum's listing takes; counted at a proxy, without Spark.

All run on this machine, with 15 commits on average since the table's last checkpoint. Seconds are by the clock, with
the proxy between. Each request of a listing is one page of a thousand names.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Final

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.bench.measure import Table, say
from tests.bench.request_prices import PRICES, counted, month
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.object_store import store_options
from tests.support.s3_server import S3Server, running_s3
from tests.support.sample_registry import shape_entry, table_entry
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_REPEATED: Final = 10
_BEFORE: Final = 15 - _REPEATED // 2
"""Commits since the table's last checkpoint, its creation and a claim among them, before what is counted."""
_LISTED: Final[tuple[int, ...]] = (10, 1_000, 10_000, 100_000)
_NOW: Final = datetime.now(timezone.utc)


def tables(*, quick: bool) -> Iterator[Table]:
    """Requests of each operation, and of a vacuum by how many files it lists."""
    with running_s3() as s3, faulty_proxy(s3.port) as proxy:
        yield _operations(proxy, 1 if quick else _REPEATED)
        yield _listings(s3, proxy, _LISTED[:1] if quick else _LISTED)


def _operations(proxy: FaultyProxy, times: int) -> Table:
    lines = []
    for name, every_s, operation in _opened(store_options(proxy.port)):
        proxy.requests()
        for number in range(times):
            operation(number)
        found = counted(proxy.requests(), times)
        say(f"{name}: {found}")
        lines.append([name, *(f"{found[kind]:.1f}" for kind in PRICES), month(found, every_s)])
    return Table("Requests of tables", ["", *PRICES, "a month"], lines)


def _opened(options: dict[str, str]) -> Iterator[tuple[str, float, Callable[[int], object]]]:
    """For each operation its name, how often it is done, and what does it for the n-th time."""
    acks = AckTable("s3://bucket/acks", options)
    acks.fence_others()
    for lsn in range(1, _BEFORE - 1):
        acks.append(_ack(lsn))
    yield "an append of acks, each second", 1, lambda number: acks.append(_ack(_BEFORE + number))
    reader = AckReader("s3://bucket/acks", options)
    reader.last_ack(SOURCE)
    yield "a look for an ack, each second, with nothing new", 1, lambda _: reader.last_ack(SOURCE)

    registry = RegistryTable("s3://bucket/log_shapes", options, create=True)
    registry.append([entry.to_json() for entry in (shape_entry(), table_entry())], _NOW)
    table = create_shape_log("s3://bucket/log", options)
    claim, files = LogClaim(table), row_files(table, options)
    claim.take()

    def append(number: int) -> None:
        rows = arrow([item((10 + number, 0), "insert", "k", {"id": "k"}), commit(10 + number)])
        claim.append(list(files.write([rows])), claim.version_of(number))

    for number in range(_BEFORE - 2):
        append(number)
    yield "an append to the shape log, each second", 1, lambda number: append(_BEFORE + number)
    follower = ShapeLogReader("s3://bucket/log", "s3://bucket/log_shapes", options)
    position = follower.read_log("users").position

    def poll(_: int) -> None:
        assert len(follower.read_log("users", position).rows) == 0

    yield "a follower's look at the log, each half second, with nothing new", 0.5, poll
    registry.entries()
    yield "a look at the registry table, each second, with nothing new", 1, lambda _: registry.entries()


def _listings(s3: S3Server, proxy: FaultyProxy, sizes: tuple[int, ...]) -> Table:
    """For files that killed processes have left, and that a vacuum finds old, but does not delete."""
    acks, lines, made = AckTable("s3://bucket/listed", store_options(proxy.port)), [], 0
    acks.fence_others()
    for size in sizes:
        for number in range(made, size):
            (s3.folder / f"listed/part-{number:06}.parquet").touch()
        made = size
        proxy.requests()
        started = time.monotonic()
        found = acks._table.vacuum(retention_hours=0, dry_run=True, full=True, enforce_retention_duration=False)
        seconds = time.monotonic() - started
        assert len(found) == size
        each: Mapping[str, float] = counted(proxy.requests(), 1)
        say(f"{size:,} files: {seconds:.2f} s")
        lines.append([f"{size:,} files", *(f"{each[kind]:.0f}" for kind in PRICES), f"{seconds:.2f} s"])
    return Table("The listing of a vacuum", ["", *PRICES, "took"], lines)


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)
