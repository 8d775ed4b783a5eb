"""``flushtracker status``: prints what holds the slot, once or repeatedly; the exit code says what is wrong."""

import argparse
import io
import json
import os
import sys
import time

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.config.one_file import DEFAULT_CONFIG, read_config
from flushtracker.config.status_config import is_status_url
from flushtracker.errors import ConfigError
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.screen import Screen, terminal_width
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.operate.status.status_output import status_output
from flushtracker.operate.status.verdict import Limits, Verdict, judge
from flushtracker.process.program import StopRequest


def run(arguments: argparse.Namespace) -> int:
    """Print the status once, or with ``--watch`` at an interval; the reader of stdout may close it at any time."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The terminal's encoding may lack the dash, and names may contain any character.
        sys.stdout.reconfigure(errors="replace")
    config = load_capture_config(arguments.config)
    has_job = arguments.job is not None or "track" not in read_config(arguments.config).off
    urls = _job_urls(arguments, config)
    view = SlotView(config, urls, has_job=has_job, for_upgrade=arguments.safe_to_upgrade)
    return _Printer(view, arguments).run()


def _job_urls(arguments: argparse.Namespace, config: CaptureConfig) -> tuple[str, ...]:
    if arguments.job is None:
        return () if config.status is None else config.status.peers
    if not is_status_url(arguments.job):
        raise ConfigError("--job is not a URL such as http://127.0.0.1:9464, without credentials")
    return (arguments.job.rstrip("/"),)


class _Printer:
    """Prints each status as text, or as one line of JSON."""

    def __init__(self, view: SlotView, arguments: argparse.Namespace) -> None:
        self._view = view
        self._limits = Limits(arguments.max_retained, arguments.max_age)
        self._is_json: bool = arguments.json
        self._watch_s: float | None = arguments.watch
        is_default = str(arguments.config) == DEFAULT_CONFIG
        self._config_arguments = () if is_default else ("--config", str(arguments.config))
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
