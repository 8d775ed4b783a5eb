"""Every command line in a message is one that the command's own parser takes, and a shell reads as it was meant."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

import flushtracker
from flushtracker.cli import command_line
from flushtracker.cli.commands import COMMANDS
from flushtracker.status.capture_status import CaptureStatus, EndedShape
from flushtracker.status.program_findings import program_findings

_ROOT: Final = Path(flushtracker.__file__).parent
_NAMED: Final = re.compile(r"flushtracker ([a-z][a-z-]*)")
_OPTIONS: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?: (?:--[a-z][a-z-]+|\0|ID\b))*(?![\w-]|:| \0:)")
_PROSE: Final = {"sets", "program"}
"""What follows the name in sentences."""
_OTHERS: Final = re.compile(r"kafka-transactions\.sh|--packages|--jars")
"""Commands of others."""
_PARSER: Final = command_line()
_SILENT: Final = ("cli/", "operate/up/", "local/", "trials/demo/", "trials/loop_trial/", "trials/warmup/")
"""What prints no advice, but starts programs."""
_COMMANDS: Final = {
    **dict.fromkeys(["capture/", "postgres/", "status/"], "capture"),
    **dict.fromkeys(["operate/report/", "tracking/acks/"], "report"),
    **dict.fromkeys(["spark/", "tracking/", "config/transport.py"], "track"),
    **dict.fromkeys(["trials/conformance/", "trials/power_failure/", "process/new_folder.py"], "conformance"),
    "operate/init/": "init",
    "operate/topics.py": "topics",
    "operate/status/": "status",
    "operate/shapes/remove": "remove-shape",
    "shape_log/table/": "read",
    "trials/recordings/replay_program.py": "replay",
}
"""The command whose options a module's messages name, unless they name another one."""
_REQUIRED: Final = {
    **{key: ["--config=x"] for key in ["capture", "track", "snapshot", "report", "topics"]},
    "read": ["--log=x", "x"],
    "check": ["--shapes=x"],
    "init": ["--postgres=x"],
    "remove-shape": ["x"],
    "conformance": ["--writer=x", "--dump=x"],
    "replay": ["--recording=x", "--shapes=x", "--out=x"],
}
_VALUES: Final = ("x", "10m", "5 GB")


def _texts(path: Path) -> Iterator[str]:
    """The strings of a module without its docstrings; what is filled in is a NUL."""
    tree = ast.parse(path.read_text())
    docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    parts = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
            yield node.value


def _printed() -> Iterator[tuple[str, str]]:
    for path in _ROOT.rglob("*.py"):
        name = path.relative_to(_ROOT).as_posix()
        if not name.startswith(_SILENT):
            yield from ((name, text) for text in _texts(path) if not _OTHERS.search(text))


def _command_of(module: str, before: str) -> str:
    named = _NAMED.findall(before)
    return named[-1] if named else next(name for prefix, name in _COMMANDS.items() if module.startswith(prefix))


def _error(command: str, words: list[str]) -> str | None:
    """What the command says of these options, with a value for each that needs one, and with what it requires."""
    filled = [word.replace("\0", "x") for word in words]
    required = [each for each in _REQUIRED.get(command, []) if each.partition("=")[0] not in filled]
    for arguments in (filled, *([part for word in filled for part in (word, value)] for value in _VALUES)):
        try:
            found = _PARSER.parse_args([command, *required, *arguments])
        except SystemExit:
            continue
        problem: str | None = found.command.check(found)
        return problem
    return "its parser refuses them"


def test_each_command_that_a_message_names_exists() -> None:
    names = {name for _, text in _printed() for name in _NAMED.findall(text)}
    assert names - _PROSE <= {command.name for command in COMMANDS}
    assert {"resync", "snapshot", "check", "capture", "track"} <= names


def test_each_option_that_a_message_names_is_one_of_the_command() -> None:
    """Together with those next to it."""
    wrong, count = [], 0
    for module, text in _printed():
        for options in _OPTIONS.finditer(text):
            command, count = _command_of(module, text[: options.start()]), count + 1
            if error := _error(command, options[0].split(" ")):
                wrong.append(f"{module}: flushtracker {command} {options[0]!r}: {error}")
    assert wrong == []
    assert count > 40


@pytest.mark.parametrize("config", [(), ("--config", "conf/a b's.yaml")])
def test_the_printed_resync_is_read_as_it_was_meant(config: tuple[str, ...]) -> None:
    """By bash and by the command itself: the same configuration, and each id, whatever characters it has."""
    ids = ("it's", "-b", "a b\t$c")
    ended = tuple(EndedShape(shape_id, 1, 900, "a column was dropped") for shape_id in ids)
    (found,) = program_findings(structs.replace(CaptureStatus(0, 0, "s", is_connected=True), ended=ended), config)
    words = found.remedy.partition("only then: flushtracker ")[2].partition("; or take")[0]
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    read = _PARSER.parse_args(done.stdout.decode().split("\0")[:-1])
    assert read.command.name == "resync"
    assert (tuple(read.shapes), str(read.config)) == (ids, config[1] if config else "None")
