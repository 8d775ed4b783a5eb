"""``make soak``: kill capture repeatedly, at random points, and check the closed loop at the end.

Sometimes the server or the broker is killed too, while capture works. After each kill of capture the tracker restarts,
sometimes without its checkpoint.
``python -m tests.integration.soak_capture --kills 100 [--seed N]`` prints one line per kill, and one for the result.
"""

import random
import subprocess
import uuid
from contextlib import closing
from functools import partial
from pathlib import Path

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_loop_parts import Tracker, Writers
from tests.support.capture_rig import CaptureRig
from tests.support.closed_loop import ClosedLoop, prepare
from tests.support.killed_capture import POINTS
from tests.support.seeded_soak import main

_SERVICE_KILL_CHANCE = 0.2
"""The probability that the server or the broker is killed before capture is."""

_REPEATED_POINTS = [point for point in POINTS if "registry" not in point]


def _soak(folder: Path, kills: int, seed: int) -> None:
    with LocalPostgres(folder / "server") as server, LocalBroker(folder / "broker") as broker:
        rig = CaptureRig(server, broker.bootstrap_servers, folder / "rig", lambda topic: f"{topic}-{uuid.uuid4()}")
        with closing(rig):
            _kill(rig, broker, kills, seed)


def _kill(rig: CaptureRig, broker: LocalBroker, kills: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  a reproducible test workload
    killed = {"server": 0, "broker": 0}
    prepare(rig)
    loop = ClosedLoop(rig, seed, Writers, Tracker)
    for number in range(kills):
        point, passes = rng.choice(_REPEATED_POINTS), rng.randrange(1, 60)
        before = len(rig.fragments())
        process = rig.start_process("tests.support.killed_capture", point, str(passes))
        if rng.random() < _SERVICE_KILL_CHANCE:
            loop.run_until(partial(_published_or_ended, rig, process, before), "capture published something")
            services: dict[str, LocalPostgres | LocalBroker] = {"server": rig.server, "broker": broker}
            name = rng.choice(list(services))
            services[name].kill()
            services[name].start()
            killed[name] += process.poll() is None
        loop.run_until(lambda process=process: process.poll() is not None, point)  # type: ignore[misc]  # a default
        if process.returncode != -9:
            raise AssertionError(f"capture ended with {process.returncode}: {rig.log()[-2000:]}")
        loop.tracker.restart(lost_checkpoint=rng.random() < 0.3)
        print(f"kill={number + 1} point={point!r} passes={passes}", flush=True)  # noqa: T201  a program prints
    process = rig.start_process()
    loop.finish()
    process.terminate()
    process.wait(60)
    loop.check()
    print(  # noqa: T201  a program prints
        f"kills={kills} server_kills={killed['server']} broker_kills={killed['broker']} seed={seed} "
        f"samples={len(loop.samples)}: nothing lost, nothing confirmed early"
    )


def _published_or_ended(rig: CaptureRig, process: "subprocess.Popen[bytes]", fragment_count: int) -> bool:
    return process.poll() is not None or len(rig.fragments()) > fragment_count


if __name__ == "__main__":
    main(__doc__, {"kills": _soak})
