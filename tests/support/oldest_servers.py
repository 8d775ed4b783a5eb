"""The oldest servers that the whole loop runs on: ``python -m tests.support.oldest_servers`` fetches the broker.

The PostgreSQL server is one of :mod:`tests.support.server_versions`, which fetches it.
"""

import os
from pathlib import Path
from typing import Any, Final

from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.local.broker import LocalBroker
from tests.support.new_server import new_server
from tests.support.server_versions import binaries_of
from tests.support.whole_loop import WholeLoop

BROKER_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("oldest_broker_jars.xml"),
    owner="the tests' oldest broker",
    megabytes=45,
    command="python -m tests.support.oldest_servers",
    folder="oldest_kafka/",
)
# The loop's truth is read from the WAL with pg_walinspect, which PostgreSQL 14 lacks.
_POSTGRES: Final = 15
# A quorum whose voters are not named came with Kafka 3.9.
_SETTINGS: Final = {"controller.quorum.voters": "1@127.0.0.1:{controller_port}"}


class LoopOnOldestServers(WholeLoop):
    """The whole loop on Kafka 3.7 and PostgreSQL 15."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings, server=new_server(folder / "server", binaries_of(_POSTGRES)))
        self.broker = LocalBroker(folder / "broker", jars=BROKER_JARS, settings=_SETTINGS)


if __name__ == "__main__":
    BROKER_JARS.fetch(os.environ)
