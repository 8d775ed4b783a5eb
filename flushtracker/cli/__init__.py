"""The command ``flushtracker``: its subcommands, their arguments, and the exit codes of each.

A subcommand's program is imported only when it runs. So ``--help`` needs no Spark, and each program needs only its own
extra. A process calls :func:`run`; ``jobs/*.py`` do so with the name of their subcommand.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from flushtracker import __version__
from flushtracker.cli.commands import COMMANDS, Command
from flushtracker.cli.store_once import StoreOnce
from flushtracker.config.one_file import CONFIG_VARIABLE, DEFAULT_CONFIG
from flushtracker.process.process_end import end_process
from flushtracker.process.program import run_program

_DESCRIPTION: Final = """\
The largest LSN that a PostgreSQL replication slot may confirm while many
writers flush at their own pace.
"""


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run :func:`main`, and exit with its exit code."""
    end_process(main(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv``, by default the process's own, and return its exit code."""
    arguments = command_line().parse_args(argv)
    command: Command = arguments.command
    if problem := _find_config(arguments) or command.check(arguments):
        arguments.parser.error(problem)
    return run_program(
        f"flushtracker {command.name}",
        partial(command.run, arguments),
        verbose=arguments.verbose,
        log_format=arguments.log_format,
    )


def _find_config(arguments: argparse.Namespace) -> str | None:
    """Set the configuration to the default one if none is named; returns the error if a command has none."""
    is_needed = not getattr(arguments, "log", None) and not getattr(arguments, "schema", False)
    if getattr(arguments, "config", arguments) is not None:
        return None
    arguments.config = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    if not is_needed or CONFIG_VARIABLE in os.environ or arguments.config.exists():
        return None
    return f"there is no {DEFAULT_CONFIG} in this folder; name a configuration with --config or in {CONFIG_VARIABLE}"


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flushtracker", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"flushtracker {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"exit codes: {command.exit_codes}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # The default action of an argument; argparse would silently use the last of several values.
        subparser.register("action", None, StoreOnce)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, parser=subparser)
    return parser
