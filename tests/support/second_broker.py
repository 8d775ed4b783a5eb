"""Further brokers in the cluster of a local one, so that a partition's leader may be away while its cluster answers."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.local.broker import LocalBroker, java_command
from flushtracker.local.free_ports import free_port
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.waiting import wait_until

NODE_ID: Final = 2


@contextmanager
def second_broker(first: LocalBroker, folder: Path, node_id: int = NODE_ID) -> Iterator[GuardedProcess]:
    """A broker beside the running one, or one that ran in this folder again; its cluster forgets it when it ends."""
    config, log = folder / "server.properties", folder / "broker.log"
    java = java_command(BROKER_JARS.paths(), heap_mb=256)
    if not config.exists():
        _format(first, config, node_id, java)
    begin = log.stat().st_size if log.exists() else 0
    broker = GuardedProcess(f"broker {node_id}", [*java, "kafka.Kafka", str(config)], log=log, env=os.environ)
    try:
        wait_until(lambda: b"Kafka Server started" in log.read_bytes()[begin:], f"broker {node_id} is up", 120)
        yield broker
    finally:
        broker.stop()


def _format(first: LocalBroker, config: Path, node_id: int, java: list[str]) -> None:
    config.parent.mkdir()
    listener = f"CLIENTS://127.0.0.1:{free_port()}"
    settings = dict(line.split("=", 1) for line in first._config.read_text().splitlines())
    settings |= {"process.roles": "broker", "node.id": str(node_id), "log.dirs": str(config.parent / "data")}
    settings |= {"listeners": listener, "advertised.listeners": listener}
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    cluster = re.search(r"^cluster.id=(.*)$", (first._config.parent / "data" / "meta.properties").read_text(), re.M)
    assert cluster
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster[1], "-c", str(config)],
        check=True,
        capture_output=True,
    )
