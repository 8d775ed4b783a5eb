"""``flushtracker capture``: the capture process, from its arguments to its exit code."""

import argparse
import logging
import sys
from contextlib import closing

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.kafka.topic_rules import ROLES
from flushtracker.postgres.connection import connect
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.slot import check_server, create_publication, create_slot
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.shapes.shapes_file import load_shapes


def run(arguments: argparse.Namespace) -> int:
    """Capture until SIGTERM or Ctrl-C."""
    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO)
    config = load_capture_config(arguments.config)
    stop = StopFlag()
    set_on_signals(stop)
    if arguments.create:
        _create_topics(config.kafka)
    require_topics(config.kafka, ROLES)
    if arguments.create:
        _create_slot(config)
    CaptureLoop(config, stop, new_epoch=arguments.new_epoch).run()
    return 0


def _create_topics(config: KafkaConfig) -> None:
    admin = TopicAdmin(config)
    missing = [role for role, topic in admin.facts(ROLES).items() if topic is None]
    if missing:
        admin.create(missing)
        print(f"flushtracker capture: created topics for {', '.join(missing)}", file=sys.stderr)


def _create_slot(config: CaptureConfig) -> None:
    """Create the publication and the slot, if they are missing.

    The slot comes last, once every shape is known to be fit for capture: as soon as it exists, the server keeps its WAL
    until a capture confirms it.
    """
    definitions = load_shapes(config.shapes)
    with closing(connect(config.postgres.connection)) as connection:
        check_server(connection)
        if create_publication(connection, config.postgres.publication):
            print(f"flushtracker capture: created publication {config.postgres.publication}", file=sys.stderr)
        tables = ServerTables(connection, config.postgres.publication)
        for definition in definitions:
            tables.resolve(definition)
        if create_slot(connection, config.postgres.slot):
            print(f"flushtracker capture: created slot {config.postgres.slot}", file=sys.stderr)
