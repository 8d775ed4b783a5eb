"""What the programs of the whole loop are configured with."""

from typing import Any, Final, Literal

from tests.support.capture_rig import CaptureRig
from tests.support.config_file import merged
from tests.support.loop_workload import Content

Program = Literal["capture", "tracker", "writers", "snapshots", "serve"]

# Each shuffle partition more makes a micro-batch slower, and a JVM that is killed soon need not optimize.
_JOB: Final = {"shape_groups": 2, "shuffle_partitions": 1, "trigger": "200 ms"}


def settings_of(rig: CaptureRig, place: str, content: Content, *, takes_snapshots: bool) -> dict[str, Any]:
    """Those of all programs but capture; ``place`` has tables and checkpoints.

    ``takes_snapshots``: whether the writers' job does.
    """
    changes = {
        "kafka": {"retry_timeout": "5 minutes"},
        "track": {**_JOB, "checkpoint": f"{place}/checkpoint"},
        "write": {
            **_JOB,
            "checkpoint": f"{place}/write_checkpoint",
            "retain": {"shapes": dict(content.retain)},
            "snapshot": "auto" if takes_snapshots else "manual",
        },
        "snapshot": {"trigger": "200 ms"},
        "serve": {"poll": "200 ms"},
    }
    return merged(rig.settings, changes)
