"""What the job costs besides batches: from its start to the first ack, again with much pending, and while it is idle.

The program is started as a user does, ``flushtracker track``, on Kafka. Start: from the process's start until the ack
table has an ack, with one transaction of one shape to read. Restart: the same on a checkpoint with 100,000 shapes
pending, until the ack of what was published while it was down. Idle: the CPU time of the program and all its processes
in a minute without events, after ten seconds; the trigger is that of deploy/compose/flushtracker.yaml.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flushtracker.local.broker import LocalBroker
from tests.bench.cpu import cpu_seconds
from tests.bench.measure import Table
from tests.support.kafka_job import KafkaJob
from tests.support.sample_source import SampleSource
from tests.support.waiting import wait_until

_IDLE_S: Final = 60.0
_PENDING: Final = 100_000


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    source = SampleSource()
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "broker") as broker:
        job = KafkaJob(Path(folder) / "job", broker.bootstrap_servers, options={"maxOffsetsPerTrigger": "500000"})
        job.write([source.transaction(2_000, "users")])
        with running(job) as pid:
            start_s = seconds_to_ack(job, 1_998)
            time.sleep(10)
            before = cpu_seconds(pid)
            time.sleep(_IDLE_S)
            idle = (cpu_seconds(pid) - before) / _IDLE_S
            # In parts: a record is at most a megabyte.
            for first in range(0, _PENDING, 5_000):
                shapes = (f"shape-{number}" for number in range(first, first + 5_000))
                job.write([source.transaction(3_000 + first, *shapes)])
            job.write([source.flushed("users", 2_000)])
            seconds_to_ack(job, 2_998)
        job.write([source.flushed(f"shape-{number}", 3_000) for number in range(5_000)])
        with running(job):
            restart_s = seconds_to_ack(job, 7_998)
    rows = [
        ["start to first ack", f"{start_s:.1f} s"],
        [f"restart with {_PENDING:,} pending", f"{restart_s:.1f} s"],
        ["idle, cores", f"{idle:.2f}"],
    ]
    yield Table("The program", ["", ""], rows)


@contextmanager
def running(job: KafkaJob) -> Iterator[int]:
    """The program runs in the block, under this process id."""
    config = job.config_file(trigger_ms=_trigger_ms())
    command = [str(Path(sys.executable).with_name("flushtracker")), "track", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def _trigger_ms() -> int:
    found = re.search(r'^  trigger: "(\d+) ms"', Path("deploy/compose/flushtracker.yaml").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def seconds_to_ack(job: KafkaJob, ack_lsn: int) -> float:
    """Until an ack is at least this far; from now."""
    start = time.monotonic()
    wait_until(
        lambda: any(ack >= ack_lsn for _, _, ack in job.acks()), f"an ack at {ack_lsn}", timeout_s=120, pause_s=0.05
    )
    return time.monotonic() - start
