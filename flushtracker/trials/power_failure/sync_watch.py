"""``SyncWatch``: answers the sync calls of other processes (see ``sync_filter``)."""

import errno
import fcntl
import platform
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.trials.power_failure import sync_filter

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CALL, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_LET_THE_KERNEL_DO_IT: Final = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that its thread waits in."""

    thread_id: int
    name: str
    first_argument: int


class SyncWatch:
    """Calls ``handle`` for each sync call of the processes that :meth:`command` starts, in threads of its own.

    If ``handle`` returns true, the call succeeds and the kernel does nothing. If it returns false or raises
    ``OSError``, the kernel executes the call.
    """

    def __init__(self, handle: Callable[[Call], bool]) -> None:
        self._handle = handle
        self._names = sync_filter.SYSCALLS[platform.machine()]
        # Not in the data folder: a socket's address has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="flushtracker-")
        self._address = f"{self._folder.name}/syncs"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._address)
        self._socket.listen()
        Thread(target=self._accept, daemon=True).start()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` so that its syncs are answered here."""
        # -I: ignore PYTHONPATH, which is meant for the command itself.
        return [sys.executable, "-I", sync_filter.__file__, self._address, *command]

    def close(self) -> None:
        """Accept no more processes; each sync of those that still run then fails."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                for descriptor in descriptors:
                    Thread(target=self._answer_all, args=(descriptor,), daemon=True).start()

    def _answer_all(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        with open(descriptor, "rb", buffering=0):
            while not poll.poll()[0][1] & select.POLLHUP:
                call = bytearray(_CALL.size)
                # The calling thread may have been killed meanwhile, or interrupted by a signal.
                with suppress(FileNotFoundError):
                    _control(descriptor, _RECEIVE, call)
                    _control(descriptor, _SEND, self._answer(call))

    def _answer(self, received: bytearray) -> bytearray:
        number, thread_id, _, syscall, _, _, first, *_ = _CALL.unpack(received)
        try:
            is_done = self._handle(Call(thread_id, self._names[syscall], first))
        except OSError:
            is_done = False
        return bytearray(_ANSWER.pack(number, 0, 0, 0 if is_done else _LET_THE_KERNEL_DO_IT))


def _control(descriptor: int, request: int, message: bytearray) -> None:
    while True:
        # Python does not repeat an ioctl that a signal interrupts.
        with suppress(InterruptedError):
            fcntl.ioctl(descriptor, request, message)
            return


def require_seccomp() -> None:
    """Raise ``ConfigError`` if the kernel cannot pass system calls to another process."""
    if platform.system() != "Linux" or platform.machine() not in sync_filter.SYSCALLS:
        raise ConfigError(
            f"power failures can be tested on Linux on {' and '.join(sync_filter.SYSCALLS)}, but this is "
            f"{platform.system()} on {platform.machine()}; leave out --power-loss"
        )
    script = f"import sys; sys.path.insert(0, {str(Path(sync_filter.__file__).parent)!r}); import sync_filter; "
    tried = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-I", "-c", f"{script}sync_filter.install()"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        reason = (tried.stderr.strip().splitlines() or [errno.errorcode[errno.EPERM]])[-1]
        raise ConfigError(
            f"power failures cannot be tested here, because the kernel does not let syncs be watched ({reason}): it "
            "must be Linux 5.9 or newer, and a container must allow seccomp; leave out --power-loss"
        )
