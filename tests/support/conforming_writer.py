"""The writers' job as ``flushtracker conformance`` runs it, and what its log holds.

``python -m tests.support.conforming_writer write CONFIG DATA`` and ``… dump DATA``. CONFIG is Kafka's, as the trial
writes it; the job's own configuration is made from it.
"""

import json
import sys
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from flushtracker.cli import main
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.delta.storage import table_rows
from flushtracker.jobs.write import background
from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.merge_plan import MergeSettings


def write(config: Path, data: Path) -> int:
    """Run the job until it is killed; its upkeep merges every two files at once."""
    background._UPKEEP_PERIOD_S = 0.3  # type: ignore[misc]
    upkeep = partial(ShapeLogUpkeep, settings=MergeSettings(merge_files=2))
    background.ShapeLogUpkeep = upkeep  # type: ignore[assignment,attr-defined]
    kafka = load_kafka_config(config)
    file = data / "write_shapes.yaml"
    file.write_text(
        json.dumps(
            {
                "source": {
                    "format": "kafka",
                    "bootstrap_servers": kafka.bootstrap_servers,
                    "shape_changes": kafka.topics.shape_changes,
                    "shapes": kafka.topics.shapes,
                },
                "flushes": {"topic": kafka.topics.flushes},
                "state": {"checkpoint": str(data / "checkpoint"), "shape_groups": 2, "shuffle_partitions": 1},
                "sink": {"log": str(data / "log"), "shapes": str(data / "log_shapes")},
                "trigger": "200 ms",
            }
        )
    )
    return main(["write", "--config", str(file)])


def dump(data: Path) -> int:
    """Print each item of the log as a line of JSON."""
    if DeltaTable.is_deltatable(str(data / "log")):
        order = ["source", "shape_id", "tx_offset", "op_offset", "operation", "key", "value"]
        rows = table_rows(DeltaTable(str(data / "log")), order).sort_by([(name, "ascending") for name in order[:4]])
        for row in rows.to_pylist():
            if row["operation"] != COMMIT:
                offset = {name: row.pop(name) for name in ("tx_offset", "op_offset")}
                value = None if row["value"] is None else json.loads(row["value"])
                sys.stdout.write(json.dumps(row | {"offset": offset, "value": value}) + "\n")
    return 0


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[2:]]
    sys.exit(write(*paths) if sys.argv[1] == "write" else dump(*paths))
