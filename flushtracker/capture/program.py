"""``flushtracker capture``: the capture process, from its arguments to its exit code.

With ``--create`` it first creates missing topics, publication and slot. No slot is created before the shapes file,
every table and the existing topics are checked: the shapes may begin where the slot does. Once there is one, errors of
single shapes do not stop capture, as without ``--create``. The slot comes last: as soon as it exists, the server keeps
its WAL until a capture confirms it.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from flushtracker.capture.capture_config import CaptureConfig, SlotConfig, load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.capture.shapes.refused_shapes import Resolved, resolve_allowed
from flushtracker.capture.source.prior_state import Succession, check_new_slot, last_entries
from flushtracker.config.streams import SHAPES
from flushtracker.errors import ConfigError, first_of
from flushtracker.events.topic_rules import ROLES
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin, all_topic_faults, require_topics
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.slot import check_server, create_slot, has_slot, system_identifier
from flushtracker.process.program import StopFlag, StopRequest, log_to_stderr, print_status, set_on_signals
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.old_rows import old_columns
from flushtracker.shapes.shape_parts import tables_of
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.wal.source_name import SourceName


def run(arguments: argparse.Namespace) -> int:
    """Capture until SIGTERM or Ctrl-C."""
    stop = StopFlag()
    set_on_signals(stop)
    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO, arguments.log_format)
    config = load_capture_config(arguments.config)
    if arguments.create:
        succession = Succession(arguments.new_epoch, arguments.upgraded_from)
        say = partial(print_status, "flushtracker capture", log_format=arguments.log_format)
        # Creating a slot waits for all open transactions.
        StopRequest()
        try:
            _create_missing(config, succession, say)
        except KeyboardInterrupt:
            return 0
        set_on_signals(stop)
    else:
        require_topics(config.kafka, ROLES)
    CaptureLoop(
        config,
        stop,
        new_epoch=arguments.new_epoch,
        upgraded_from=arguments.upgraded_from,
        before_upgrade=arguments.before_upgrade,
        waits=arguments.wait,
    ).run()
    return 0


def _create_missing(config: CaptureConfig, succession: Succession, say: Callable[[str], None]) -> None:
    """Create what is missing; ``say`` is called with a line for each thing created.

    Raises:
        ConfigError: the shapes file, a table or a topic is wrong.
        PostgresError: the server or the publication is not fit for capture, or this role may not create it.
        SlotError: the slot is missing, but shapes were captured from it before.
        BrokerError: Kafka is unavailable, or refuses a request.
    """
    shapes, postgres = read_shapes_file(config.shapes), config.postgres
    admin = TopicAdmin(config.kafka)
    missing_roles = _missing_roles(config.kafka, admin)
    with closing(connect(postgres.connection)) as connection:
        check_server(connection)
        is_first = not has_slot(connection, postgres.slot)
        if is_first and SHAPES not in missing_roles:
            _check_new_slot(config, connection, succession)
        definitions = shapes.all_right() if is_first else shapes.definitions
        if _create_publication(connection, postgres, definitions, is_first=is_first):
            say(f"created publication {postgres.publication}")
        if missing_roles:
            admin.create(missing_roles)
            say(f"created topics for {', '.join(missing_roles)}")
        require_topics(config.kafka, ROLES)
        if create_slot(connection, postgres.slot, failover=postgres.failover):
            say(f"created slot {postgres.slot}")


def _check_new_slot(config: CaptureConfig, connection: Connection, succession: Succession) -> None:
    # A source on a later timeline keeps its name, so the timeline does not matter here.
    base = SourceName(system_identifier(connection), 1, config.postgres.slot)
    with closing(TopicReader(config.kafka)) as reader:
        check_new_slot(last_entries(reader.values(config.kafka.topics.shapes)), base, succession)


def _missing_roles(config: KafkaConfig, admin: TopicAdmin) -> list[str]:
    """The roles without a topic, including snapshots if named; raises ``ConfigError`` if an existing topic is wrong."""
    facts = admin.facts()
    if faults := all_topic_faults(config, {role: topic for role, topic in facts.items() if topic is not None}):
        raise ConfigError(f"{'; '.join(faults)}. `flushtracker topics` checks topics")
    return [role for role, topic in facts.items() if topic is None]


def _create_publication(
    connection: Connection, postgres: SlotConfig, definitions: Sequence[ShapeDefinition], *, is_first: bool
) -> bool:
    """Create the publication if it is missing; return whether it was.

    The ``is_first`` start, before there is a slot, refuses shapes that do not fit their tables. Tables are checked
    together with the publication, so both happen in one transaction, which is rolled back at the end of the connection
    if a shape is refused. The tables are added after it and before the slot is created, so that the shapes get
    everything in the slot. Shapes whose tables cannot be added yet are delayed; capture logs that when it has started.
    """
    # One snapshot for all catalog queries, as with one_snapshot, but it must be able to write.
    rows(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    tables = ServerTables(connection, postgres.publication, postgres.slot, sets_identities=postgres.sets_identities)
    is_new = tables.create_publication({table for definition in definitions for table in tables_of(definition)})
    tables.check_publication()
    resolved: Resolved = ()
    if is_first and not postgres.sets_identities:
        resolved = tables.resolve(definitions)
    rows(connection, "COMMIT")
    if is_first and postgres.sets_identities:
        # Each table is altered by itself: this transaction would keep the locks of all of them.
        resolved, errors = resolve_allowed(definitions, tables.resolve)
        if refused := {shape_id: each for shape_id, each in errors.items() if not tables.awaits_identity(each)}:
            raise first_of(refused)
    if resolved:
        tables.publish_tables(old_columns(each for each in resolved if not each[1].published_by))
    return is_new
