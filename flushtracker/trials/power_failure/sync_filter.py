"""Runs a command whose sync calls another process answers: ``python sync_filter.py SOCKET COMMAND…``.

A seccomp filter makes the kernel suspend a thread at each system call that makes something durable, until the process
behind the socket has answered. That needs no privileges and no compiler, and works for programs in any language and for
all processes they start. The file imports nothing of the package, so that it starts fast.
"""

import array
import ctypes
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final

SYSCALLS: Final[dict[str, dict[int, str]]] = {
    "x86_64": {
        2: "open",
        26: "msync",
        74: "fsync",
        75: "fdatasync",
        162: "sync",
        209: "io_submit",
        257: "openat",
        306: "syncfs",
        328: "pwritev2",
        425: "io_uring_setup",
    },
    "aarch64": {
        2: "io_submit",
        56: "openat",
        81: "sync",
        82: "fsync",
        83: "fdatasync",
        227: "msync",
        267: "syncfs",
        287: "pwritev2",
        425: "io_uring_setup",
    },
}
"""Machine → number → name of the system calls to answer. Both machines are little-endian."""

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_ARGUMENTS_AT: Final = 16
"""The offset of the arguments in ``struct seccomp_data``; each has eight bytes."""

_FLAGS: Final = {"open": (1, 0x101000), "openat": (2, 0x101000), "pwritev2": (5, 0x6)}
"""These calls matter only if the argument has one of these bits: O_SYNC, O_DSYNC, RWF_SYNC, RWF_DSYNC."""

_LOAD, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ASK, _NO_SUCH_CALL = 0x7FFF0000, 0x7FC00000, 0x00050000 | 38
_NO_NEW_PRIVILEGES, _MODE_FILTER, _NEW_LISTENER, _NOT_INTERRUPTED = 38, 1, 8, 32


def _instructions(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the filter's instructions: code, how many to skip if true, if false, and operand."""
    yield _LOAD, 0, 0, 4
    yield _EQUALS, 1, 0, _AUDIT_ARCH[machine]
    yield _RETURN, 0, 0, _ALLOW
    yield _LOAD, 0, 0, 0
    for number, name in SYSCALLS[machine].items():
        if name in _FLAGS:
            argument, bits = _FLAGS[name]
            yield _EQUALS, 0, 4, number
            yield _LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument
            yield _HAS_BITS, 0, 1, bits
            yield _RETURN, 0, 0, _ASK
            yield _RETURN, 0, 0, _ALLOW
        else:
            yield _EQUALS, 0, 1, number
            # Syncs through a ring are not system calls. Without io_uring, programs fall back to ordinary calls.
            yield _RETURN, 0, 0, _NO_SUCH_CALL if name == "io_uring_setup" else _ASK
    yield _RETURN, 0, 0, _ALLOW


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install() -> int:
    """Install the filter for this process and all it starts; returns the descriptor to answer its calls with.

    Raises:
        OSError: the kernel refuses.
    """
    machine = platform.machine()
    parts = [struct.pack("=HBBI", *each) for each in _instructions(machine)]
    program = _Program(len(parts), b"".join(parts))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # A signal must not interrupt a received call, but Linux before 5.19 does not have that flag.
    for flags in (_NEW_LISTENER | _NOT_INTERRUPTED, _NEW_LISTENER):
        descriptor: int = libc.syscall(_SECCOMP[machine], _MODE_FILTER, flags, ctypes.byref(program))
        if descriptor >= 0:
            return descriptor
    raise OSError(ctypes.get_errno(), "seccomp")


def main(address: str, command: list[str]) -> None:
    """Connect before installing the filter: from then on, a call is suspended until somebody answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        descriptor = install()
        connection.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    os.close(descriptor)
    try:
        os.execvp(command[0], command)  # noqa: S606  the user's own command
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
