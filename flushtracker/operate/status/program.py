"""``flushtracker status``: prints what holds the slot, once or repeatedly; the exit code says what is wrong."""

import argparse
import json
import os
import sys
import time

from flushtracker.config.status_config import is_status_url
from flushtracker.errors import ConfigError
from flushtracker.operate.status.overview_text import config_arguments, overview_lines
from flushtracker.operate.status.screen import Screen, replace_unprintable, terminal_width
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.operate.status.status_output import status_output
from flushtracker.operate.status.verdict import Limits, Verdict, judge
from flushtracker.process.program import StopRequest


def run(arguments: argparse.Namespace) -> int:
    """Print the status once, or with ``--watch`` at an interval; the reader of stdout may close it at any time."""
    replace_unprintable()
    view = SlotView.of_file(arguments.config, _job_url(arguments), for_upgrade=arguments.safe_to_upgrade)
    return _Printer(view, arguments).run()


def _job_url(arguments: argparse.Namespace) -> str | None:
    if arguments.job is None:
        return None
    if not is_status_url(arguments.job):
        raise ConfigError("--job is not a URL such as http://127.0.0.1:9464, without credentials")
    url: str = arguments.job.rstrip("/")
    return url


class _Printer:
    """Prints each status as text, or as one line of JSON."""

    def __init__(self, view: SlotView, arguments: argparse.Namespace) -> None:
        self._view = view
        self._limits = Limits(arguments.max_retained, arguments.max_age)
        self._is_json: bool = arguments.json
        self._watch_s: float | None = arguments.watch
        self._config_arguments = config_arguments(arguments.config)
        self._exit_code = 0

    def run(self) -> int:
        try:
            if self._watch_s is None:
                lines, verdict = self._check()
                self._exit_code = verdict.exit_code
                _write(lines)
            else:
                self._watch(self._watch_s)
        except BrokenPipeError:
            # Python flushes stdout again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return self._exit_code

    def _watch(self, seconds: float) -> None:
        StopRequest()
        try:
            if self._is_json:
                while True:
                    _write(self._check()[0])
                    time.sleep(seconds)
            with Screen() as screen:
                while True:
                    screen.show(self._check()[0])
                    time.sleep(seconds)
        except KeyboardInterrupt:
            return

    def _check(self) -> tuple[list[str], Verdict]:
        overview = self._view.query()
        verdict = judge(overview, self._limits, self._config_arguments)
        if self._is_json:
            return [json.dumps(status_output(overview, verdict).to_json())], verdict
        width = terminal_width()
        return overview_lines(overview, verdict, width=width, config_arguments=self._config_arguments), verdict


def _write(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
