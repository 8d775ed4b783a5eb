"""Part of ``make release``: a wheel in an environment of its own runs the demo, and then the recording.

The environment has only what pip installs for the wheel, in the versions of ``constraints.txt``. The programs run in an
empty folder, and fetch all jars. It takes minutes, half a gigabyte of packages and 70 MB of jars.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_RECORDING: Final = ("--recording", str(ROOT / "tests/recording"), "--shapes", str(ROOT / "conf/shapes.yaml"))
_ALL_AT_ONCE: Final = {
    'trigger: "2 seconds"': "trigger: available_now",
    "max_files_per_trigger: 1": "max_files_per_trigger: 1000",
    "flush: hold": "flush: batch",
}
"""What takes a minute and more in the configuration of ``make run``, and what replaces it."""
_DEADLINE_S: Final = 600
_READY: Final = "every shape has its rows: "
_RIGHT: Final = rf"{_READY}(?s:.*)\d+ shapes: folding each log gives its query"


class InstalledWheel:
    """The wheel with the extra ``demo`` in a new environment, and an empty folder to run in."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        own = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("FLUSHTRACKER_JARS", "PYTHON"))}
        self._environ = kept | own
        venv.create(folder / "venv", with_pip=False)
        self._python = str(folder / "venv/bin/python")
        pip = [sys.executable, "-m", "pip", "--python", self._python, "install", "--quiet"]
        self._run(*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[demo]", environ=dict(os.environ))
        found = self._run(self._python, "-c", "import flushtracker; print(flushtracker.__file__)").strip()
        if not found.startswith(str(folder / "venv")):
            raise SystemExit(f"the wheel was installed into {folder / 'venv'}, and flushtracker is {found}")

    def run_demo(self) -> None:
        """Run ``flushtracker demo`` until its shapes have their rows, then press Ctrl-C; its check must pass."""
        _say("demo")
        output = self.folder.with_name("demo.log")
        with output.open("wb") as written:
            process = subprocess.Popen(
                [self._python, "-m", "flushtracker", "demo"],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        try:
            end = time.monotonic() + _DEADLINE_S
            while _READY not in output.read_text() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            code = process.wait(_DEADLINE_S)
        finally:
            process.kill()
        if code or not re.search(_RIGHT, output.read_text()):
            raise SystemExit(f"{output.read_text()}\nflushtracker demo ended with exit code {code}")

    def run_recording(self) -> None:
        """Replay, write, track and verify; raises ``SystemExit`` with the output of a program that fails."""
        text = (ROOT / "conf" / "replay.yaml").read_text()
        for here, there in _ALL_AT_ONCE.items():
            text = text.replace(here, there)
        (self.folder / "replay.yaml").write_text(text)
        (self.folder / "data" / "flushes").mkdir(parents=True)
        for arguments in (
            ["replay", *_RECORDING, "--out", "data"],
            ["write", "--config", "replay.yaml"],
            ["track", "--config", "replay.yaml"],
            ["verify", "--log", "data/log", *_RECORDING],
            ["report", "--config", "replay.yaml"],
        ):
            _say(*arguments)
            self._run(self._python, "-m", "flushtracker", *arguments)

    def _run(self, *command: str, environ: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ or self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{' '.join(command)} ended with exit code {done.returncode}")
        return done.stdout


def _say(*arguments: str) -> None:
    sys.stdout.write(f"flushtracker {' '.join(arguments)}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Try the one wheel in the folder that is the only argument."""
    (wheel,) = Path(arguments[0]).absolute().glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="flushtracker-wheel-") as scratch:
        # The demo's server runs as another user.
        Path(scratch).chmod(0o755)
        installed = InstalledWheel(wheel, Path(scratch))
        installed.run_demo()
        installed.run_recording()
    sys.stdout.write(f"{wheel.name} has run the demo, and written, tracked and verified the recording\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
