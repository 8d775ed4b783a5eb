"""Shows blocks of lines: on a terminal each replaces the previous one; elsewhere they follow each other."""

import io
import shutil
import sys
from typing import Final

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def terminal_width() -> int | None:
    """The width of the terminal on stdout; ``None`` if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def replace_unprintable() -> None:
    """The terminal's encoding may lack the dash and the bars, and names may contain any character."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class Screen:
    """Shows blocks until the end of the ``with`` statement, then restores the terminal and prints the last block."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._last: list[str] = []
        self._has_shown = False

    def __enter__(self) -> "Screen":
        if self.is_terminal:
            sys.stdout.write(_ENTER)
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        if self.is_terminal:
            sys.stdout.write(_LEAVE + "".join(f"{line}\n" for line in self._last))
            sys.stdout.flush()

    def show(self, lines: list[str]) -> None:
        """Show a block; on a terminal with a single write, so that it does not flicker."""
        self._last = lines
        if self.is_terminal:
            shown = f"{_CLEAR_LINE}\r\n".join(_fitting(lines))
            sys.stdout.write(f"{_HOME}{shown}{_CLEAR_LINE}{_CLEAR_BELOW}")
        else:
            separator = "\n" if self._has_shown else ""
            sys.stdout.write(separator + "".join(f"{line}\n" for line in lines))
        self._has_shown = True
        sys.stdout.flush()


def _fitting(lines: list[str]) -> list[str]:
    """The first lines that fit on the terminal, counting wrapped lines; more would scroll it."""
    size = shutil.get_terminal_size()
    left, fitting = size.lines, []
    for line in lines:
        left -= max(1, -(-len(line) // size.columns))
        if left < 0:
            break
        fitting.append(line)
    return fitting
