"""``flushtracker init``: looks at a database, says what it lacks, and writes a configuration with a shape a table.

The server refuses every change in its session, because all of its transactions are read-only.
"""

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from flushtracker.config.config_keys import KEYS
from flushtracker.config.libpq_text import parse_options
from flushtracker.config.starting_config import config_text, is_local_broker
from flushtracker.errors import ConfigError
from flushtracker.operate.init.candidates import Candidate, read_candidates
from flushtracker.operate.init.chosen_tables import ALL, chosen_tables
from flushtracker.operate.init.starting_files import CONFIG, SHAPES, require_new, write_files
from flushtracker.operate.init.survey_text import lack_lines, table_lines
from flushtracker.operate.shapes.remove_program import confirmed
from flushtracker.postgres.connection import Connection, connect, limit_statements, rows, server_name
from flushtracker.postgres.connection_uri import SECRETS, connection_uri
from flushtracker.postgres.left_out import left_out_columns
from flushtracker.postgres.publication_lacks import has_publication, publication_lacks
from flushtracker.postgres.server_lacks import ServerLack, server_lacks
from flushtracker.postgres.server_tables import LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S
from flushtracker.status.shapes_remedy import shell_word

_SLOT: Final = KEYS["capture.slot"].default_text
_PUBLICATION: Final = KEYS["capture.publication"].default_text
_NOTHING_WRITTEN: Final = 1
_CONNECT_S: Final = 2.0
_READ_ONLY: Final = "SET default_transaction_read_only = on"
_NAME: Final = {"application_name": "flushtracker_init"}
_WHO: Final = "SELECT current_user, current_database(), current_setting('server_version')"


def run(arguments: argparse.Namespace) -> int:
    """Print what the server has and lacks, then write the files."""
    folder: Path = arguments.out
    require_new(folder)
    options = parse_options(arguments.postgres)
    with closing(connect({**options, **_NAME})) as connection:
        limit_statements(connection, statement_timeout_s=STATEMENT_TIMEOUT_S, lock_timeout_s=LOCK_TIMEOUT_S)
        rows(connection, _READ_ONLY)
        ((role, database, version),) = rows(connection, _WHO)
        print(f"PostgreSQL {version} at {server_name({**options, 'dbname': database})}, as role {role}")
        publication = _PUBLICATION if has_publication(connection, _PUBLICATION) else None
        candidates = read_candidates(connection, publication)
        print(*table_lines(candidates), sep="\n")
        chosen = _choose(arguments.tables, candidates)
        if not chosen:
            print("no table was chosen; nothing was written")
            return _NOTHING_WRITTEN
        lacks = [*server_lacks(connection, _SLOT), *_publication_lacks(connection, chosen)]
        left_out = left_out_columns(connection, _PUBLICATION, {each.name for each in chosen if not each.left_out})
        for each in left_out:
            print(f"note: {each}")
    _print_lacks(lacks)
    files = f"{folder / CONFIG}, and {len(chosen)} shape{'' if len(chosen) == 1 else 's'} in {folder / SHAPES}"
    if not arguments.yes and not confirmed((), f"Write {files}?", "nothing was written"):
        print("nothing was written")
        return _NOTHING_WRITTEN
    text = config_text(connection_uri(options), arguments.kafka, arguments.storage, str(folder / SHAPES))
    write_files(folder, text, chosen)
    print(f"wrote {files}")
    _print_next(folder, options, arguments.kafka, has_lacks=any(each.is_needed for each in lacks))
    return 0


def _choose(text: str | None, candidates: Sequence[Candidate]) -> list[Candidate]:
    if all(each.reasons for each in candidates):
        print("no table can have a shape; run the statements above, and then init again")
        return []
    if text is not None:
        return chosen_tables(text, candidates)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"nothing was written; without a terminal, choose with --tables {ALL}, or --tables public.a,public.b"
        )
    while True:
        try:
            answer = input(f"Tables to begin with ({ALL}, or names with commas; none to stop): ")
        except EOFError:
            return []
        if not answer.strip():
            return []
        try:
            return chosen_tables(answer, candidates)
        except ConfigError as error:
            print(error)


def _publication_lacks(connection: Connection, chosen: Sequence[Candidate]) -> list[ServerLack]:
    tables = {each.table.oid: each.name for each in chosen}
    unpublished = [each.table.oid for each in chosen if not each.is_published]
    return publication_lacks(connection, _PUBLICATION, _SLOT, tables, unpublished)


def _print_lacks(lacks: Sequence[ServerLack]) -> None:
    needed, others = [each for each in lacks if each.is_needed], [each for each in lacks if not each.is_needed]
    if needed:
        print("The server lacks, and an administrator must run first:", *lack_lines(needed), sep="\n")
    if others:
        print("Better also:", *lack_lines(others), sep="\n")


def _print_next(folder: Path, options: Mapping[str, str], kafka: str, *, has_lacks: bool) -> None:
    if variables := [variable for name, variable in SECRETS.items() if options.get(name)]:
        print(f"no secret is in it: set {' and '.join(variables)} where the programs run, or use a passfile")
    first = "run the statements, then: " if has_lacks else ""
    config = shell_word(str(folder / CONFIG))
    command = f"flushtracker up --config {config}"
    if is_local_broker(kafka) and not _answers(kafka):
        print(f"nothing answers at {kafka}; flushtracker up --with-kafka runs a broker there")
        command = f"flushtracker up --with-kafka --config {config}"
    print(f"next: {first}{command}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True
