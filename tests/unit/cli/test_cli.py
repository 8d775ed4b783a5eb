"""The ``flushtracker`` command and the installed package: help, versions, extras, and the public names."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import flushtracker
from flushtracker.cli import main
from tests.support.import_blocker import run_without
from tests.support.processes import run_to_end

ROOT: Final = Path(flushtracker.__file__).parents[1]
COMMANDS: Final = (
    "init",
    "up",
    "config",
    "track",
    "capture",
    "write",
    "jobs",
    "snapshot",
    "sink",
    "add-shape",
    "remove-shape",
    "check",
    "resync",
    "topics",
    "replay",
    "report",
    "status",
    "dist",
    "shapes",
    "read",
    "serve",
    "verify",
    "conformance",
    "conformance-loop",
    "demo",
)

# The optional modules that each program may import: those of its extra's packages.
_KAFKA: Final = {"confluent_kafka"}
_SPARK: Final = {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "deltalake", "uvicorn", *_KAFKA}
_CAPTURE: Final = {"psycopg", "deltalake", "pyarrow", *_KAFKA}
EXTRAS: Final = {
    "flushtracker.tracking.job.program": _SPARK,
    "flushtracker.shape_log.write.program": _SPARK,
    "flushtracker.operate.jobs.program": _SPARK,
    "flushtracker.shape_log.snapshot.program": {*_SPARK, "psycopg"},
    "flushtracker.sinks.job.program": {*_KAFKA, "uvicorn"},
    "flushtracker.capture.program": {*_CAPTURE, "uvicorn"},
    "flushtracker.operate.topics": _KAFKA,
    "flushtracker.operate.init.program": _CAPTURE,
    "flushtracker.operate.shapes.add_program": _CAPTURE,
    "flushtracker.operate.shapes.remove_program": _CAPTURE,
    "flushtracker.operate.shapes.check_program": _CAPTURE - _KAFKA,
    "flushtracker.trials.recordings.replay_program": _KAFKA,
    "flushtracker.operate.status.program": _CAPTURE,
    "flushtracker.spark.dist": set(),
    "flushtracker.operate.read": {"deltalake", "pyarrow"},
    "flushtracker.operate.list_program": {"deltalake", "pyarrow"},
    "flushtracker.operate.up.program": {*_CAPTURE, "uvicorn"},
    "flushtracker.operate.config_report": {"psycopg"},
    "flushtracker.serve.program": {"deltalake", "pyarrow", "uvicorn"},
    "flushtracker.trials.conformance.program": _KAFKA,
    "flushtracker.trials.loop_trial.program": _CAPTURE,
    "flushtracker.trials.recordings.verify_program": {"deltalake", "pyarrow"},
    "flushtracker.operate.report.program": {"deltalake", "pyarrow", "rich", "matplotlib", "numpy"},
}
OPTIONAL: Final = set[str]().union(*EXTRAS.values())


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, *arguments], cwd=ROOT)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_has_help_with_its_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help exits with 0 and fits a terminal of 80 columns."""
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    text = capsys.readouterr().out
    assert f"flushtracker {command}" in text
    assert "exit codes: 0 " in text
    assert "--verbose" in text
    assert max(map(len, text.splitlines())) <= 80


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the order in which a newcomer needs them."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.findall(r"^    ([\w-]+)", capsys.readouterr().out, re.MULTILINE) == list(COMMANDS)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """It is defined only in the package itself."""
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"flushtracker {flushtracker.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["flush"], ["track"]], ids=["none", "unknown", "without its configuration"])
def test_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage and the missing or unknown argument are printed."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert "usage: flushtracker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "fact"),
    [
        ("--kafka", "broker", "'broker' is not brokers with their ports, such as broker:9092"),
        ("--storage", "gs:bucket", "'gs:bucket' is not a folder, or a URI such as s3://bucket/orders"),
        ("--storage", "", "'' is not a folder, or a URI"),
    ],
)
def test_init_writes_no_place_that_a_program_would_refuse(
    option: str, value: str, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it ask the server first."""
    with pytest.raises(SystemExit):
        main(["init", "--postgres", "host=nowhere.invalid", option, value])
    assert f"argument {option}: {fact}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["track", "--config", "a.yaml", "--config", "b.yaml"],
        ["capture", "--config=a.yaml", "--conf", "b.yaml"],
        ["write", "--config", "a.yaml", "--config", "a.yaml"],
        ["snapshot", "--config", "a.yaml", "orders", "--config", "b.yaml"],
        ["topics", "--config", "a.yaml", "--config", "b.yaml"],
        ["report", "--config", "a.yaml", "--config", "b.yaml"],
        ["replay", "--recording", "r", "--shapes", "s", "--out", "o", "--out", "p"],
        ["demo", "--seconds", "1", "--seconds", "2"],
    ],
)
def test_newcomer_gives_two_configurations_to_one_program(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one would win in silence; it holds for each option that has one value."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert re.search(r"error: argument --\w+: is given more than once$", capsys.readouterr().err.strip())


def test_abandon_without_recover_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It would have no effect, and is reported before Spark is needed."""
    with pytest.raises(SystemExit) as exited:
        main(["track", "--config", "x", "--abandon", "s"])
    assert exited.value.code == 2
    error = capsys.readouterr().err
    assert "usage: flushtracker track" in error
    assert error.endswith("error: --abandon is only valid with --recover\n")


def test_module_and_jobs_run_the_command() -> None:
    """``python -m flushtracker`` and each file in ``jobs/`` are the same command."""
    assert run_python("-m", "flushtracker", "track", "--help").stdout.startswith("usage: flushtracker track ")
    jobs = {"track_flushes": "track", "write_shapes": "write", "snapshot_shapes": "snapshot"}
    for job, command in jobs.items():
        done = run_python(f"jobs/{job}.py", "--help")
        assert (done.returncode, done.stdout.split()[:3]) == (0, ["usage:", "flushtracker", command]), done.stderr
    assert {path.stem for path in (ROOT / "jobs").glob("*.py")} == jobs.keys()


@pytest.mark.parametrize("extra", sorted({" ".join(sorted(extra)) for extra in EXTRAS.values()}))
def test_program_imports_with_only_the_packages_of_its_extra(extra: str) -> None:
    """The command itself, with its help, needs only the bare install. Those with the same extra share a process."""
    packages = set(extra.split())
    modules = [module for module, needed in (("flushtracker.cli", set[str]()), *EXTRAS.items()) if needed == packages]
    done = run_without(OPTIONAL - packages, "\n".join(f"import {module}" for module in modules))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "arguments", "package", "extra"),
    [
        ("track", ["--config", "x"], "py4j", "spark"),
        ("capture", ["--config", "x"], "psycopg", "capture"),
        ("read", ["x", "--log", "y"], "deltalake", "read"),
        ("serve", ["--config", "x"], "uvicorn", "serve"),
        ("report", ["--config", "x"], "rich", "report"),
        ("demo", [], "psycopg", "demo"),
        ("topics", ["--config", "x"], "confluent_kafka", "writer"),
    ],
)
def test_missing_extra_is_named_with_the_command_that_installs_it(
    command: str, arguments: list[str], package: str, extra: str
) -> None:
    """The user sees one line and the exit code of a configuration error, not a traceback."""
    program = "from flushtracker.cli import main\nsys.exit(main(sys.argv[1:]))"
    done = run_without({package}, program, command, *arguments)
    expected = f"flushtracker {command}: {package} is not installed; run: pip install 'flushtracker[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_the_rule_and_the_events_need_the_bare_install_alone() -> None:
    """As do a writer's cursor, positions and folds; only publishing needs the client of Kafka."""
    others = {"ChainLinks", "FlushNotifier", "FragmentChain", "Link", "ShapeEvent", "ShapeEvents", "ShapeGroup"}
    others |= {
        name for name in flushtracker.__all__ if name.lower().startswith(("read_shape", "shaperead", "shapesread"))
    }
    program = (
        f"import flushtracker\n[getattr(flushtracker, name) for name in {sorted({*flushtracker.__all__} - others)}]"
    )
    done = run_without(OPTIONAL, program)
    assert done.returncode == 0, done.stderr


def test_public_names_refer_to_what_they_name() -> None:
    """Each is imported on first use; any other name is an ``AttributeError``."""
    for name in flushtracker.__all__:
        assert getattr(flushtracker, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'flushtracker' has no attribute 'Flushtracker'"):
        _ = flushtracker.Flushtracker


def test_importing_the_package_imports_nothing_else() -> None:
    """``make`` checks Java with a Python that has no packages yet."""
    done = run_python("-S", "-c", "import flushtracker, sys; print([n for n in sys.modules if 'flushtracker.' in n])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_readme_example_prints_what_its_comments_show() -> None:
    """Its Python block runs, and prints what the comments beside each ``print`` show."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "AlignedTracker" in block]
    done = run_python("-c", block)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", block)
