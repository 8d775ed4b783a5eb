"""``end_process``: ends a process whose libraries have their own threads."""

import atexit
import os
import sys
import threading
from typing import Final, NoReturn

_UNWRITTEN: Final = 120
"""Python's own exit code of a process whose last output cannot be written."""


def end_process(exit_code: int) -> NoReturn:
    """End this process as Python does, but without finalizing the interpreter.

    Threads of pyarrow and deltalake may release a Python object long after the call that created it. During
    finalization, Python before 3.14 ends such a thread in the middle of C++ or Rust. That aborts the process (exit code
    134 or 139), although the program has finished its work.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        exit_code = _UNWRITTEN
    os._exit(exit_code)
