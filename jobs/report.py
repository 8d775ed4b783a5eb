"""Report how the ack rose and which shape held it back, as tables and as a plot.

Ends with an error unless the last ack is the last commit. Needs the package's
extra "report" (rich and matplotlib), but no Java.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flushtracker.command_line import run_program
from flushtracker.config import FilesSource, load_config
from flushtracker.delta.ack_history import read_ack_history
from flushtracker.errors import ConfigError
from flushtracker.report.figures import last_published_commit, make_report

_EPILOG = """\
exit codes: 0 the last ack is the last commit; 1 it is not, or anything not
foreseen; 2 the arguments or the configuration; 3 a fragment cannot be read;
5 no ack table, or an empty one
"""
_EXTRAS = ("rich", "matplotlib")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="that of track_flushes")
    parser.add_argument("--source", metavar="NAME", help="which source, where the table has several")
    parser.add_argument(
        "--plot", type=Path, default=Path("data/report.png"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--verbose", action="store_true", help="a traceback with an error")
    arguments = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may lack a dash, and names may hold anything.
        sys.stdout.reconfigure(errors="replace")
    return run_program("report", partial(_report, arguments), verbose=arguments.verbose)


def _report(arguments: argparse.Namespace) -> int:
    try:
        # An extra that is not installed is an error of one line.
        from rich.console import Console  # noqa: PLC0415  see above

        from flushtracker.report.plot import plot_report  # noqa: PLC0415  see above
        from flushtracker.report.tables import print_report  # noqa: PLC0415  see above
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise ConfigError(
            f"the report needs {package}, which is not installed; run: pip install 'flushtracker[report]'"
        ) from error
    config = load_config(arguments.config)
    history = read_ack_history(config.sink.acks, config.sink.storage_options, arguments.source)
    # Of topics, the last commit that the job has seen is known, not the last one that is there.
    is_files = isinstance(config.source, FilesSource)
    published = last_published_commit(config.source.fragments, history.source) if is_files else None
    report = make_report(history, published)
    plot_report(report, arguments.plot)
    print_report(report, Console())
    print(f"plot: {arguments.plot}")
    return 0 if report.is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
