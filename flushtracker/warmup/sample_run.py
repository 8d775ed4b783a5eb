"""``python -m flushtracker.warmup.sample_run FOLDER BOOTSTRAP``: both jobs, in one JVM, on a broker without topics.

Twice: the second time they start from a checkpoint.
"""

import sys
from pathlib import Path
from typing import Final

from flushtracker.cli import main
from flushtracker.warmup.sample_streams import SampleStreams

_LSNS: Final = (1000, 2000)
_WRITE: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", shape_changes: shape_changes, shapes: shapes}}
flushes: {{topic: flushes}}
state: {{checkpoint: "{folder}/write_checkpoint", shape_groups: 1, shuffle_partitions: 1}}
sink: {{log: "{folder}/log", shapes: "{folder}/log_shapes"}}
trigger: available_now
"""
_TRACK: Final = """\
source: {{format: kafka, bootstrap_servers: "{servers}", fragments: fragments, flushes: flushes}}
state: {{checkpoint: "{folder}/checkpoint", shape_groups: 1, shuffle_partitions: 1}}
sink: {{acks: "{folder}/acks", dead_letters: "{folder}/dead_letters"}}
trigger: available_now
"""


def run(folder: Path, bootstrap_servers: str) -> int:
    """The exit code of the first job that fails, else 0."""
    streams = SampleStreams(bootstrap_servers)
    jobs = {"write": _WRITE, "track": _TRACK}
    for name, text in jobs.items():
        (folder / f"{name}.yaml").write_text(text.format(folder=folder, servers=bootstrap_servers))
    for lsn in _LSNS:
        streams.publish(lsn)
        for name in jobs:
            if exit_code := main([name, "--config", str(folder / f"{name}.yaml")]):
                return exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
