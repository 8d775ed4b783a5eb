"""The jars of a Kafka broker: ``python -m flushtracker.local.broker_jars`` fetches them into ``.jars/kafka``."""

import sys
from pathlib import Path
from typing import Final

from flushtracker.ivy_jars import JarSet, fetch_program

BROKER_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("ivy.xml"),
    owner="the broker",
    megabytes=43,
    command="python -m flushtracker.local.broker_jars",
    folder="kafka/",
)

if __name__ == "__main__":
    sys.exit(fetch_program(BROKER_JARS))
