"""How many changes per second capture handles on one core, and how much memory a large transaction needs.

``python -m tests.bench.bench_capture [--rows 200000] [--matching {0,1}]`` starts a PostgreSQL server and a broker,
writes one transaction of that many rows, and lets ``flushtracker capture`` catch up. The rate is per second of CPU time
of the capture process, without its start, so it holds for one core even while the others are busy.
"""

import argparse
import os
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.records import fragment_key
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.source_name import base_source
from tests.support.capture_rig import SLOT, CaptureRig, shape

_DEADLINE_S = 3600.0
_INSERT = """
INSERT INTO users SELECT g, 'eu', 'name of ' || g, g || '@example.com', g % 100 FROM generate_series(1, {rows}) g
"""


@dataclass(frozen=True)
class Cost:
    """The cost of one run of capture."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--matching", type=int, choices=[0, 1], default=1, help="whether the rows match a shape")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server, LocalBroker(folder / "broker") as broker:
            rig = CaptureRig(server, broker.bootstrap_servers, folder / "rig", lambda topic: f"{topic}-{uuid.uuid4()}")
            try:
                _run(rig, arguments.rows, matching=bool(arguments.matching))
            finally:
                rig.close()


def _run(rig: CaptureRig, rows: int, *, matching: bool) -> None:
    rig.create()
    rig.server.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, region text, name text, email text, score int)",
        "CREATE TABLE others (id bigint PRIMARY KEY)",
    )
    rig.define(shape("users", "public.users" if matching else "public.others"))
    start = _catch_up(rig, rig.commit_lsn("INSERT INTO others VALUES (1)"))
    lsn = rig.commit_lsn(_INSERT.format(rows=rows))
    cost = _catch_up(rig, lsn)
    cpu_s = cost.cpu_s - start.cpu_s
    print(  # noqa: T201  a program prints
        f"rows={rows} matching={int(matching)} changes_per_core_second={rows / cpu_s:,.0f} cpu_s={cpu_s:.1f} "
        f"wall_s={cost.wall_s:.1f} peak_mib={cost.peak_bytes / 2**20:.0f} idle_peak_mib={start.peak_bytes / 2**20:.0f}"
    )


def _catch_up(rig: CaptureRig, lsn: int) -> Cost:
    """Run capture until it has published everything up to ``lsn``."""
    started = time.monotonic()
    process = rig.start_process()
    reader = TopicReader(rig.config.kafka)
    while _published(rig, reader) < lsn - 1:
        if process.poll() is not None or time.monotonic() - started > _DEADLINE_S:
            raise SystemExit(f"capture did not catch up: {rig.log()[-2000:]}")
        time.sleep(0.5)
    reader.close()
    process.send_signal(signal.SIGTERM)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _published(rig: CaptureRig, reader: TopicReader) -> int:
    """The LSN of the last published fragment, or 0."""
    ((system_id,),) = rig.server.execute("SELECT system_identifier::text FROM pg_control_system()")
    key = fragment_key(base_source(system_id, 1, SLOT))
    values = next(iter(reader.tails(rig.config.kafka.topics.fragments, key)))
    return max((FragmentEvent.from_json(value).lsn for value in values[-1:]), default=0)


if __name__ == "__main__":
    main()
