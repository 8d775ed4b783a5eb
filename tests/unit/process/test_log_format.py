"""``--log-format json``: one object per line, whose fields are what was logged."""

import ast
import json
import logging
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flushtracker
from flushtracker.cli import main
from flushtracker.errors import ConfigError
from flushtracker.process.log_format import RESERVED, event_fields, log_formatter
from flushtracker.process.program import run_program
from tests.support.processes import run_to_end

ROOT = Path(flushtracker.__file__).parent


def logged(text: Any, *values: object) -> dict[str, Any]:
    """The event as a log collector reads it."""
    record = logging.LogRecord("flushtracker.x", logging.WARNING, "", 0, text, values, None)
    line = log_formatter("json").format(record)
    assert line.isascii()
    assert "\n" not in line
    event: dict[str, Any] = json.loads(line)
    return event


def test_an_event_is_an_object_with_its_values_as_fields() -> None:
    """Numbers are numbers; the time is in UTC, with its offset."""
    event = logged("batch done batch_id=%d source=%s ms=%d s=%.1f none=%s", 41, "7/1/s", 12.7, 0.26, None)
    at = datetime.fromisoformat(event.pop("timestamp"))
    assert at.utcoffset() == timedelta(0)
    assert event == {
        "level": "WARNING",
        "logger": "flushtracker.x",
        "message": "batch done batch_id=41 source=7/1/s ms=12 s=0.3 none=None",
        "batch_id": 41,
        "source": "7/1/s",
        "ms": 12,
        "s": 0.3,
        "none": None,
    }


@given(st.text(), st.text())
def test_no_value_adds_a_field_or_a_line(one: str, other: str) -> None:
    """Only the format has names of fields; a value may hold anything, such as line breaks or another event."""
    event = logged("shape added shape_id=%s: %s", one, f"{other} ack_lsn=0/1\n{{}}")
    assert event.keys() == {"timestamp", "level", "logger", "message", "shape_id"}
    assert event["shape_id"] == one.encode("utf-8", "backslashreplace").decode()


def test_a_field_of_several_values_is_their_text() -> None:
    """And one that is not a value of its own is no field."""
    event = logged("running ranges=%d/%d, up to %d%% of table=%s; retrying for %.0f s", 3, 7, 40, "public.t", 2.0)
    assert (event["ranges"], event["table"]) == ("3/7", "public.t")
    assert event.keys() == {"timestamp", "level", "logger", "message", "ranges", "table"}


@pytest.mark.parametrize(
    ("message", "values", "text"),
    [
        ("disk 90% done", (), "disk 90% done"),
        ("100% full of a=%s", (), "100% full of a=%s"),
        ("get url=%2Fa", (), "get url=%2Fa"),
        ("n=%*d of=%s", (3, 5, "x"), "n=  5 of=x"),
        ("n=%.*f", (1, 0.26), "n=0.3"),
        ({"level": "x", "disk": "90% done"}, (), "{'level': 'x', 'disk': '90% done'}"),
        (ValueError("90% done a=%s"), (), "90% done a=%s"),
        ("a=%(a)s", ({"a": 1},), "a=1"),
    ],
)
def test_no_event_of_another_package_is_lost(message: Any, values: tuple[object, ...], text: str) -> None:
    """A percent sign that is no conversion, a conversion with a star, and a message that is no text: no fields."""
    event = logged(message, *values)
    assert event.keys() == {"timestamp", "level", "logger", "message"}
    assert (event["level"], event["message"]) == ("WARNING", text)


def test_a_number_that_json_does_not_have_is_text() -> None:
    """Readers refuse NaN and Infinity."""
    assert dict(event_fields("a=%g b=%s", (float("inf"), float("nan")))) == {"a": "inf", "b": "nan"}


def test_events_of_the_package_name_no_field_twice_or_as_the_program_does() -> None:
    """A field called level would hide the event's own."""
    formats = [
        node.args[0].value
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"debug", "info", "warning", "error", "exception"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]
    assert len(formats) > 40
    for text in formats:
        names = [name for name, _ in event_fields(text, (0,) * (text.count("%") - 2 * text.count("%%")))]
        assert len(names) == len(set(names)), text
        assert not RESERVED & set(names), text


def test_error_at_the_end_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    """With its exit code, and with the traceback inside of it."""

    def program() -> int:
        raise ConfigError("no topic a\nb")

    assert run_program("flushtracker x", program, verbose=True, log_format="json") == 2
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["level"], event["logger"], event["exit_code"]) == ("ERROR", "flushtracker x", 2)
    assert event["message"] == "no topic a\\nb"
    assert event["exc_info"].startswith("Traceback (most recent call last):\n")


def test_every_line_of_a_program_is_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a configuration that is not there, and from one line about what a replay has done."""
    recording = ROOT.parent / "tests" / "recording"
    options = ["--shapes", str(ROOT.parent / "conf" / "shapes.yaml"), "--out", str(tmp_path), "--log-format", "json"]
    assert main(["replay", "--recording", str(recording), *options]) == 0
    assert main(["track", "--config", str(tmp_path / "none"), "--log-format", "json"]) == 2
    done, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert (done["level"], done["logger"]) == ("INFO", "flushtracker replay")
    assert failed["message"].endswith("none cannot be read: No such file or directory")


def test_warnings_and_tracebacks_are_objects_on_one_line() -> None:
    """They come from Python itself, or from a library."""
    program = """
import logging, warnings
from flushtracker.process.program import log_to_stderr
log_to_stderr(log_format="json")
warnings.warn("old")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("x").exception("failed")
"""
    done = run_to_end([sys.executable, "-c", program], timeout=30)
    warning, failed = map(json.loads, done.stderr.splitlines())
    assert (warning["level"], warning["logger"]) == ("WARNING", "py.warnings")
    assert failed["exc_info"].endswith("ZeroDivisionError: division by zero")
