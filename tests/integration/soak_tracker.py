"""``make soak``: kill drivers and executors of the job repeatedly under load, on a real broker and a real cluster.

Every poll of the ack table checks all rows: no ack is early, duplicate, or less than the one before. At the end the
load stops, and the last commit must be acknowledged.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from flushtracker.local.broker import LocalBroker
from tests.support.kafka_job import KafkaJob
from tests.support.kafka_load import AckFaults, KafkaLoad, await_ack_after
from tests.support.standalone_cluster import StandaloneCluster

_LONGEST_DELAY_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver-kills", type=int, default=50, metavar="N", help="default: %(default)s")
    parser.add_argument("--executor-kills", type=int, default=50, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the load and the delays (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=1e9, metavar="N", help="stop killing after N minutes (default: no limit)"
    )
    arguments = parser.parse_args()
    kills = ["driver"] * arguments.driver_kills + ["executor"] * arguments.executor_kills
    rng = random.Random(arguments.seed)  # noqa: S311  reproducible delays
    rng.shuffle(kills)
    with tempfile.TemporaryDirectory(prefix="flushtracker-soak-") as name:
        folder = Path(name)
        with (
            LocalBroker(folder / "broker") as broker,
            StandaloneCluster(folder / "cluster") as cluster,
        ):
            job = KafkaJob(folder / "job", broker.bootstrap_servers, partitions=2)
            soak(cluster, job, kills, rng, arguments.minutes)


def soak(cluster: StandaloneCluster, job: KafkaJob, kills: list[str], rng: random.Random, minutes: float) -> None:
    """Execute ``kills`` in order, each at a random moment after an ack that followed the previous kill."""
    started = time.monotonic()
    with KafkaLoad(job, rng.randrange(1 << 30)) as load:
        driver = cluster.submit_job(job)
        ack_lsn = await_ack_after(load, -1)
        for number, victim in enumerate(kills, start=1):
            if time.monotonic() - started > 60 * minutes:
                kills = kills[: number - 1]
                break
            time.sleep(rng.uniform(0, _LONGEST_DELAY_S))
            if victim == "driver":
                cluster.kill_driver(driver)
                driver = cluster.submit_job(job)
            else:
                cluster.kill_an_executor()
            ack_lsn = await_ack_after(load, load.assert_sound())
            if driver.poll() is not None:
                sys.exit(f"the driver ended unexpectedly: {cluster.log_of(driver).splitlines()[-1]}")
            report(f"{number} of {len(kills)}: {victim} killed, last ack {ack_lsn}, {time.monotonic() - started:.0f} s")
    last_commit = load.bound()
    await_ack_after(load, last_commit - 1)
    driver.terminate()
    code = driver.wait(120)
    ack_lsn, faults = load.inspect_acks()
    report(
        f"killed {kills.count('driver')} drivers and {kills.count('executor')} executors under {load.transactions} "
        f"transactions, in {time.monotonic() - started:.0f} s: last commit {last_commit}, last of "
        f"{len(job.ack_rows())} acks {ack_lsn}; {faults}; the last driver ended with exit code {code}"
    )
    if ack_lsn != last_commit or faults != AckFaults() or code != 0:
        sys.exit(1)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
