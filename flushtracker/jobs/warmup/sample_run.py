"""``python -m flushtracker.jobs.warmup.sample_run FOLDER BOOTSTRAP``: both jobs, in one JVM.

Twice: the second time they start from a checkpoint.
"""

import os
import sys
from pathlib import Path
from typing import Final

from flushtracker.cli import main
from flushtracker.jobs.warmup.sample_streams import SampleStreams

_LSNS: Final = (1000, 2000)
_WRITE: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", shape_changes: shape_changes, shapes: shapes}}
flushes: {{topic: flushes}}
state: {{checkpoint: write_checkpoint, shape_groups: 1, shuffle_partitions: 1}}
sink: {{log: log, shapes: log_shapes}}
trigger: available_now
"""
_TRACK: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", fragments: fragments, flushes: flushes}}
state: {{checkpoint: checkpoint, shape_groups: 1, shuffle_partitions: 1}}
sink: {{acks: acks, dead_letters: dead_letters}}
trigger: available_now
"""


def run(folder: Path, bootstrap_servers: str) -> int:
    """The exit code of the first job that fails, else 0."""
    os.chdir(folder)
    streams = SampleStreams(bootstrap_servers)
    jobs = {"write": _WRITE, "track": _TRACK}
    for name, text in jobs.items():
        Path(f"{name}.yaml").write_text(text.format(servers=bootstrap_servers))
    for lsn in _LSNS:
        streams.publish(lsn)
        for name in jobs:
            if exit_code := main([name, "--config", f"{name}.yaml"]):
                return exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
