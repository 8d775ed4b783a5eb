"""Handles Ctrl-C while a program is still being imported, which takes most of a second.

Python would raise ``KeyboardInterrupt`` somewhere in an import, with a traceback, or without any effect where the
interpreter ignores exceptions. Nothing has started yet, so the process just ends. If SIGINT is ignored, it stays
ignored.
"""

import signal
import threading


def end_at_interrupt() -> None:
    """From now on, SIGINT ends the process at once."""
    _replace(signal.default_int_handler, signal.SIG_DFL)


def raise_at_interrupt() -> None:
    """From now on, SIGINT raises ``KeyboardInterrupt`` again."""
    _replace(signal.SIG_DFL, signal.default_int_handler)


def _replace(expected: object, handler: "signal._HANDLER") -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is expected:
        signal.signal(signal.SIGINT, handler)
