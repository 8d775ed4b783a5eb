"""Each command of flushtracker that a page shows is one that the command's own parser takes."""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from flushtracker.cli import command_line

_ROOT: Final = Path(__file__).parents[3]
_PAGES: Final = (
    *(_ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(_ROOT.glob("docs/*.md")),
)
_PARSER: Final = command_line()
_BLOCK: Final = re.compile(r"^ *```(?:\w*)\n(.*?)^ *```", re.M | re.S)
_INLINE: Final = re.compile(r"`(flushtracker [^`]+)`")


def _lines() -> Iterator[tuple[str, str]]:
    """The commands in blocks of code, with the page of each."""
    for page in _PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if command.startswith("flushtracker "):
                    yield page.name, command


def _error(command: str) -> str | None:
    """What the command line says of it; a redirection and a pipe are the shell's."""
    words = shlex.split(re.split(r" [|>&] ?", command)[0], comments=True)[1:]
    try:
        found = _PARSER.parse_args(words)
    except SystemExit as error:
        return None if error.code == 0 else "its parser refuses it"
    problem: str | None = found.command.check(found)
    return problem


def test_each_command_in_a_block_is_taken() -> None:
    commands = list(_lines())
    assert {(page, command, error) for page, command in commands if (error := _error(command))} == set()
    assert len(commands) > 25


def test_each_command_that_a_sentence_names_exists_with_its_options() -> None:
    options = {name: set(parser._option_string_actions) for name, parser in _subparsers().items()}
    named = {
        (page.name, text)
        for page in _PAGES
        for text in _INLINE.findall(page.read_text().replace("\n", " "))
        if re.match(r"flushtracker [a-z]", text)
    }
    wrong = {
        (page, text)
        for page, text in named
        if not set(re.findall(r"(?<!\S)--[a-z-]+", text)) <= options.get(text.split()[1], set())
        or text.split()[1] not in options
    }
    assert wrong == set()
    assert len(named) > 60


def _subparsers() -> Mapping[str, argparse.ArgumentParser]:
    """By the names of the commands."""
    (found,) = (action for action in _PARSER._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)
