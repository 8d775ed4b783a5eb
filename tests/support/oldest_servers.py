"""The oldest servers that the whole loop runs on: ``python -m tests.support.oldest_servers`` fetches the broker.

The PostgreSQL server is one of :mod:`tests.support.server_versions`, which fetches it.
"""

import os
from pathlib import Path
from typing import Final

from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.new_server import new_server
from tests.support.server_versions import binaries_of

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


def oldest_server(folder: Path) -> LocalPostgres:
    """PostgreSQL 15, with new data; not started yet."""
    return new_server(folder, binaries_of(_POSTGRES))


def oldest_broker(folder: Path) -> LocalBroker:
    """Kafka 3.7; not started yet."""
    return LocalBroker(folder, jars=BROKER_JARS, settings=_SETTINGS)


if __name__ == "__main__":
    BROKER_JARS.fetch(os.environ)
