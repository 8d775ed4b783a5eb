"""``PrintExample``: an option that prints an example of a command's file, and exits."""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

_CONF: Final = Path(__file__).parents[1] / "conf"
"""A link to ``conf`` in the repository; a folder with the examples in a wheel."""


class PrintExample(argparse.Action):
    """Prints the file of this name unchanged. Other arguments, even required ones, may be absent."""

    def __init__(self, option_strings: list[str], dest: str, *, file: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)
        self._file = file

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write((_CONF / self._file).read_text(encoding="utf-8"))
        parser.exit()
