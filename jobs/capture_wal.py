"""Capture WAL: a PostgreSQL slot in, fragments and shape changes out to Kafka, and the acks back to the slot.

One process reads one slot. Stopped and started again it goes on where the slot
is confirmed; everything after that is sent again.
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.command_line import run_program
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.kafka.topic_rules import ROLES
from flushtracker.postgres.capture_loop import CaptureLoop
from flushtracker.postgres.connection import connect
from flushtracker.postgres.slot import check_server, create_publication, create_slot

_EPILOG = """\
exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 anything not foreseen; 2 the
configuration, the shapes or the topics; 3 the stream cannot be read; 5 the ack
table; 6 Kafka; 7 PostgreSQL, also where the slot is lost or of another history
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="such as conf/capture.yaml")
    add("--create", action="store_true", help="make the topics, the publication and the slot that are missing")
    add("--new-epoch", action="store_true", help="go on under a new source, after the server was restored")
    add("--verbose", action="store_true", help="more in the log, and a traceback with an error")
    arguments = parser.parse_args(argv)
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    program = partial(_capture, arguments.config, create=arguments.create, new_epoch=arguments.new_epoch)
    return run_program("capture_wal", program, verbose=arguments.verbose)


def _capture(config_file: Path, *, create: bool, new_epoch: bool) -> int:
    config = load_capture_config(config_file)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if create:
        _create(config)
    require_topics(config.kafka, ROLES)
    CaptureLoop(config, stop, new_epoch=new_epoch).run()
    return 0


def _create(config: CaptureConfig) -> None:
    admin = TopicAdmin(config.kafka)
    missing = [role for role, topic in admin.facts(ROLES).items() if topic is None]
    if missing:
        admin.create(missing)
        print(f"capture_wal: created the topics of {', '.join(missing)}", file=sys.stderr)
    with closing(connect(config.postgres.connection)) as connection:
        check_server(connection)
        if create_publication(connection, config.postgres.publication):
            print(f"capture_wal: created publication {config.postgres.publication}", file=sys.stderr)
        if create_slot(connection, config.postgres.slot):
            print(f"capture_wal: created slot {config.postgres.slot}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
