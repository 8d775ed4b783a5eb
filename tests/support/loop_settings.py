"""What the programs of the whole loop are configured with, but for capture."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from tests.support.capture_rig import CaptureRig
from tests.support.loop_workload import Content

Program = Literal["capture", "tracker", "writers", "snapshots", "serve"]

# Each shuffle partition more makes a micro-batch slower, and a JVM that is killed soon need not optimize.
_STATE: Final = {"shape_groups": 2, "shuffle_partitions": 1}


def settings_of(
    rig: CaptureRig, place: str, content: Content, *, takes_snapshots: bool
) -> Mapping[Program, dict[str, Any]]:
    """By program; ``place`` has tables and checkpoints. ``takes_snapshots``: whether the writers' job does."""
    config, topics = rig.config, rig.config.kafka.topics
    postgres = {name: rig.settings["postgres"][name] for name in ("connection", "publication")}
    source = {"format": "kafka", "bootstrap_servers": config.kafka.bootstrap_servers, "retry_timeout": "5 minutes"}
    tables = {"log": f"{place}/log", "shapes": f"{place}/log_shapes"}
    snapshots = {"snapshot": "auto", "postgres": postgres} if takes_snapshots else {"snapshot": "manual"}
    return {
        "tracker": {
            "source": {**source, "fragments": topics.fragments, "flushes": topics.flushes},
            "state": {"checkpoint": f"{place}/checkpoint", **_STATE},
            "sink": {"acks": config.acks, "dead_letters": f"{place}/dead_letters"},
            "trigger": "200 ms",
        },
        "writers": {
            "source": {**source, "shape_changes": topics.shape_changes, "shapes": topics.shapes},
            "flushes": {"topic": topics.flushes},
            "state": {"checkpoint": f"{place}/write_checkpoint", **_STATE},
            "sink": {**tables, "retain": {"shapes": dict(content.retain)}},
            "flush": "batch",
            "write_unit": "txn_fragment",
            "trigger": "200 ms",
            **snapshots,
        },
        "snapshots": {"sink": tables, "postgres": postgres, "trigger": "200 ms"},
        "serve": {"sink": tables, "poll": "200 ms"},
    }
