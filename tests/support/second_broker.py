"""A second broker in the cluster of a local one, so that a partition's leader may be away while its cluster answers."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.local.broker import LocalBroker, java_command
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.waiting import wait_until

NODE_ID: Final = 2
_SETTINGS: Final = """\
process.roles=broker
node.id={node_id}
listeners=CLIENTS://127.0.0.1:{port}
advertised.listeners=CLIENTS://127.0.0.1:{port}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller}
log.dirs={folder}/data
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=2000
"""


@contextmanager
def second_broker(first: LocalBroker, folder: Path) -> Iterator[GuardedProcess]:
    """A broker with the id ``NODE_ID`` beside the running one; its cluster forgets it when it ends."""
    folder.mkdir()
    properties = first._config.read_text()
    controller = re.search(r"^controller.quorum.bootstrap.servers=(.*)$", properties, re.M)
    cluster = re.search(r"^cluster.id=(.*)$", (first._config.parent / "data" / "meta.properties").read_text(), re.M)
    assert controller
    assert cluster
    config = folder / "server.properties"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config.write_text(_SETTINGS.format(node_id=NODE_ID, port=port, controller=controller[1], folder=folder))
    java = java_command(BROKER_JARS, heap_mb=256)
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster[1], "-c", str(config)],
        check=True,
        capture_output=True,
    )
    log = folder / "broker.log"
    broker = GuardedProcess("the second broker", [*java, "kafka.Kafka", str(config)], log=log, env=os.environ)
    try:
        wait_until(lambda: b"Kafka Server started" in log.read_bytes(), "the second broker is up", 120)
        yield broker
    finally:
        broker.stop()
