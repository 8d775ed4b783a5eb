"""Where blocks of lines that replace each other are shown: a terminal's alternate screen, or one after the other."""

import shutil
import sys
from typing import Final

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def terminal_width() -> int | None:
    """The columns of the terminal that is stdout; ``None`` if stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


class Screen:
    """Shows blocks until the ``with`` block ends. What was in the terminal before is then there again, and the last
    block below it.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._last: list[str] = []
        self._has_shown = False

    def __enter__(self) -> "Screen":
        if self._is_terminal:
            sys.stdout.write(_ENTER)
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        if self._is_terminal:
            sys.stdout.write(_LEAVE + "".join(f"{line}\n" for line in self._last))
            sys.stdout.flush()

    def show(self, lines: list[str]) -> None:
        """Show a block: in a terminal instead of the one before, with one write, so that nothing flickers."""
        self._last = lines
        if self._is_terminal:
            shown = f"{_CLEAR_LINE}\r\n".join(_fitting(lines))
            sys.stdout.write(f"{_HOME}{shown}{_CLEAR_LINE}{_CLEAR_BELOW}")
        else:
            separator = "\n" if self._has_shown else ""
            sys.stdout.write(separator + "".join(f"{line}\n" for line in lines))
        self._has_shown = True
        sys.stdout.flush()


def _fitting(lines: list[str]) -> list[str]:
    """As many of the lines as the terminal has room for, with those that it wraps; the rest would scroll it."""
    size = shutil.get_terminal_size()
    left, fitting = size.lines, []
    for line in lines:
        left -= max(1, -(-len(line) // size.columns))
        if left < 0:
            break
        fitting.append(line)
    return fitting
