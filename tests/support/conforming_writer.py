"""The writers' job as ``flushtracker conformance`` runs it, and what its log holds.

``python -m tests.support.conforming_writer write CONFIG DATA``, ``… dump DATA`` and ``… read DATA``. CONFIG is Kafka's,
as the trial writes it; the job's own configuration is made from it.
"""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from flushtracker.cli import main
from flushtracker.delta.storage import table_rows
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.write import background
from tests.support.config_file import change_config

_COLUMNS: Final = ["source", "shape_id", "tx_offset", "op_offset", "operation", "key", "value"]


def write(config: Path, data: Path) -> int:
    """Run the job until it is killed; its upkeep merges every two files at once."""
    background._UPKEEP_PERIOD_S = 0.3  # type: ignore[misc]
    upkeep = partial(ShapeLogUpkeep, settings=MergeSettings(merge_files=2))
    background.ShapeLogUpkeep = upkeep  # type: ignore[assignment,attr-defined]
    file = data / "flushtracker.yaml"
    shutil.copy(config, file)
    job = {"trigger": "200 ms", "snapshot": "manual", "shape_groups": 2, "shuffle_partitions": 1}
    change_config(file, {"storage": str(data), "write": job, "status": False})
    return main(["write", "--config", str(file)])


def dump(data: Path) -> int:
    """Print each item of the log as a line of JSON."""
    if DeltaTable.is_deltatable(str(data / "log")):
        _print_items(table_rows(DeltaTable(str(data / "log")), _COLUMNS))
    return 0


def read(data: Path) -> int:
    """Print each item that a reader of the log sees."""
    if DeltaTable.is_deltatable(str(data / "log")):
        reader = ShapeLogReader(str(data / "log"), str(data / "log_shapes"))
        shapes = table_rows(DeltaTable(str(data / "log")), ["source", "shape_id"]).group_by(["source", "shape_id"])
        for row in shapes.aggregate([]).to_pylist():
            found = reader.read_log(row["shape_id"], source=row["source"], changes_only=True, even_if_ended=True)
            _print_items(found.rows.select(_COLUMNS))
    return 0


def _print_items(rows: pa.Table) -> None:
    for row in rows.sort_by([(name, "ascending") for name in _COLUMNS[:4]]).to_pylist():
        if row["operation"] != COMMIT:
            offset = {name: row.pop(name) for name in ("tx_offset", "op_offset")}
            value = None if row["value"] is None else json.loads(row["value"])
            sys.stdout.write(json.dumps(row | {"offset": offset, "value": value}) + "\n")


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[2:]]
    sys.exit(write(*paths) if sys.argv[1] == "write" else {"dump": dump, "read": read}[sys.argv[1]](*paths))
