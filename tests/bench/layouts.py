"""The layout of the shape log beside those that Delta itself offers, under the same appends.

``runs`` is the log as it is. ``compact`` is a table partitioned by ``crc32(shape_id) % N``, whose small files
deltalake's own ``optimize.compact`` merges; ``z-order`` is the same with ``optimize.z_order`` by shape and transaction.
Each append has rows of the five large shapes, and a transaction of some of 10,000 small ones. Each layout is measured
in a process of its own.

What a read opens is what statistics and partitions leave, which any reader can skip: files, and the row groups in them.
The bytes are those of the row groups. ``waiting``: just before the last upkeep, ``tidy``: after it.
"""

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake

from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.table import CONFIGURATION, create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.merge_plan import MergeSettings
from tests.bench.measure import Table
from tests.support.shape_log_rows import SOURCE

_LAYOUTS: Final = ("runs", "compact 16", "compact 64", "z-order 16")
_LARGE: Final = [f"large-{number}" for number in range(5)]
_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def tables(*, quick: bool) -> Iterator[Table]:
    """What appends and reads cost, and upkeep after many times."""
    if quick:
        yield _table(100, 8, 4, 10, "what appends and reads cost")
        return
    yield _table(10_000, 192, 64, 1, "what appends and reads cost")
    yield _table(10_000, 96, 2, 10, "many times of upkeep, of appends of a tenth")


def _table(small: int, appends: int, every: int, divisor: int, what: str) -> Table:
    found = {layout: _measured(layout, small, appends, every, divisor) for layout in _LAYOUTS}
    title = (
        f"{what}: {small:,} small shapes and {len(_LARGE)} large ones, {appends} appends of "
        f"{found['runs'].pop('rows') / appends:,.0f} rows, upkeep after every {every}; CPU time, medians of shapes"
    )
    names = [*found["runs"]]
    return Table(
        title, ["", *_LAYOUTS], [[name, *(f"{found[each][name]:,.2f}" for each in _LAYOUTS)] for name in names]
    )


def _measured(layout: str, *numbers: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.layouts", layout, *map(str, numbers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class _Log:
    """A table in one layout."""

    def __init__(self, uri: str, layout: str, every: int) -> None:
        self.uri = uri
        self._kind, _, count = layout.partition(" ")
        self._partitions = int(count or 0)
        self._upkeep: ShapeLogUpkeep | None = None
        if not self._partitions:
            create_shape_log(uri)
            self._upkeep = ShapeLogUpkeep(uri, settings=MergeSettings(merge_files=every))
            return
        schema = Schema.from_arrow(SCHEMA.append(pa.field("bucket", pa.int32())))
        DeltaTable.create(
            uri,
            schema,
            partition_by=["bucket"],
            configuration=CONFIGURATION,
            raise_if_key_not_exists=False,  # one is none of Delta's
        )

    def append(self, rows: pa.Table) -> None:
        if self._partitions:
            buckets = [self._bucket(shape_id) for shape_id in rows["shape_id"].to_pylist()]
            rows = rows.append_column("bucket", pa.array(buckets, pa.int32()))
        write_deltalake(self.uri, rows, mode="append")

    def tidy(self) -> int:
        """Do the layout's upkeep; returns how many bytes it has written."""
        before = {file["path"] for file in self.files()}
        if self._upkeep is not None:
            self._upkeep.run(_NOW)
        elif self._kind == "compact":
            DeltaTable(self.uri).optimize.compact()
        else:
            DeltaTable(self.uri).optimize.z_order(["shape_id", "tx_offset"])
        return sum(file["size_bytes"] for file in self.files() if file["path"] not in before)

    def files(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pa.table(DeltaTable(self.uri).get_add_actions(flatten=True)).to_pylist()
        return found

    def bytes(self) -> int:
        return sum(file["size_bytes"] for file in self.files())

    def opened(self, shape_id: str) -> tuple[int, int]:
        """How many files a read of the shape opens, and the bytes of the row groups in them that may have it."""
        count = size = 0
        for file in self.files():
            if not file["min.shape_id"] <= shape_id <= file["max.shape_id"]:
                continue
            if self._partitions and file["partition.bucket"] != self._bucket(shape_id):
                continue
            count += 1
            size += sum(_group_bytes(Path(self.uri, file["path"]), shape_id))
        return count, size

    def _bucket(self, shape_id: str) -> int:
        return crc32(shape_id.encode()) % self._partitions


def _group_bytes(path: Path, shape_id: str) -> Iterator[int]:
    footer = pq.read_metadata(path)
    column = footer.schema.names.index("shape_id")
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found = group.column(column).statistics
        if found.min <= shape_id <= found.max:
            yield sum(group.column(each).total_compressed_size for each in range(group.num_columns))


def _rows(draw: random.Random, tx: int, small: Sequence[str], divisor: int) -> pa.Table:
    shape_ids = [shape_id for shape_id in _LARGE for _ in range(250 // divisor)]
    shape_ids += [shape_id for shape_id in draw.sample(small, min(400 // divisor, len(small))) for _ in range(3)]
    count = len(shape_ids)
    columns: Mapping[str, Sequence[object]] = {
        "source": [SOURCE] * count,
        "shape_id": shape_ids,
        "tx_offset": [tx] * count,
        "op_offset": range(0, 2 * count, 2),
        "operation": ["insert"] * count,
        "key": [f'"public"."orders"/"{draw.randrange(10**9)}"' for _ in shape_ids],
        "value": [f'{{"id":"{draw.randrange(10**9)}","name":"{draw.random()}","total":"12.50"}}' for _ in shape_ids],
        "xid": [tx] * count,
        "chunk": [0] * count,
    }
    return pa.table([pa.array(columns.get(f.name, [None] * count), f.type) for f in SCHEMA], schema=SCHEMA)


def _measure(layout: str, small: int, appends: int, every: int, divisor: int) -> dict[str, float]:
    draw = random.Random(1)  # noqa: S311  a reproducible load
    shape_ids = [f"customers-of-the-region-{number:05}" for number in range(small)]
    asked = draw.sample(shape_ids, 20)
    found: dict[str, float] = {"rows": 0}
    with tempfile.TemporaryDirectory() as folder:
        log = _Log(str(Path(folder) / "log"), layout, every)
        append_s = upkeep_s = appended = written = first_files = 0.0
        peak_kib = _peak_kib()
        for number in range(1, appends + 1):
            rows = _rows(draw, 1000 * number, shape_ids, divisor)
            found["rows"] += len(rows)
            started = time.process_time()
            log.append(rows)
            append_s += time.process_time() - started
            if number == 1:
                first_files, appended = len(log.files()), log.bytes() * appends
                log.opened(asked[0])
                peak_kib = _peak_kib()
            if number == appends:
                found |= _reads(log, asked, "waiting")
            if number % every == 0:
                started = time.process_time()
                written += log.tidy()
                upkeep_s += time.process_time() - started
        found |= _reads(log, asked, "tidy")
        found["files of an append"] = first_files
        found["ms of an append"] = append_s / appends * 1e3
        found["µs of upkeep for each row"] = upkeep_s / found["rows"] * 1e6
        found["MB appended"] = appended / 1e6
        found["MB written by upkeep"] = written / 1e6
        found["MB more memory at the peak"] = (_peak_kib() - peak_kib) / 1024
        found["files in the end"] = len(log.files())
        found["MB in the end"] = log.bytes() / 1e6
        found["MB of the table's own log"] = sum(p.stat().st_size for p in Path(log.uri, "_delta_log").iterdir()) / 1e6
    return found


def _reads(log: _Log, small: Sequence[str], state: str) -> dict[str, float]:
    found = {}
    for kind, shape_ids in (("small", small), ("large", _LARGE)):
        opened = [log.opened(shape_id) for shape_id in shape_ids]
        found[f"{state}: files that a {kind} shape opens"] = statistics.median(files for files, _ in opened)
        found[f"{state}: KB that a {kind} shape reads"] = statistics.median(size for _, size in opened) / 1e3
    return found


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1], *map(int, sys.argv[2:]))))
