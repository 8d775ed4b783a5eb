"""Part of ``make release``: a wheel that is installed by itself replays the recording, writes, tracks and verifies it.

The environment has only the wheel of its own, and finds other packages in the one that this runs in.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_RECORDING: Final = ("--recording", str(ROOT / "tests/recording"), "--shapes", str(ROOT / "conf/shapes.yaml"))
_ALL_AT_ONCE: Final = {
    'trigger: "2 seconds"': "trigger: available_now",
    "max_files_per_trigger: 1 ": "max_files_per_trigger: 1000 ",
    "flush: hold": "flush: batch",
}
"""Of the configurations of ``make run``, which last a minute and more."""


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into an environment of its own; returns its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)])
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    over = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(site, "over.pth").write_text(over)
    found = _run([str(python), "-c", "import flushtracker; print(flushtracker.__file__)"], cwd=folder).strip()
    if not found.startswith(site):
        raise SystemExit(f"the wheel was installed into {site}, and flushtracker is {found}")
    return python


def run_recording(python: Path, folder: Path) -> None:
    """Run the programs in ``folder``; raises ``SystemExit`` with the output of one that fails."""
    for name in ("replay.yaml", "write_replay.yaml"):
        text = (ROOT / "conf" / name).read_text()
        for here, there in _ALL_AT_ONCE.items():
            text = text.replace(here, there)
        (folder / name).write_text(text)
    (folder / "data" / "flushes").mkdir(parents=True)
    environ = os.environ | {"FLUSHTRACKER_JARS": str(ROOT / ".jars")}
    for arguments in (
        ["replay", *_RECORDING, "--out", "data"],
        ["write", "--config", "write_replay.yaml"],
        ["track", "--config", "replay.yaml"],
        ["verify", "--log", "data/log", *_RECORDING],
        ["report", "--config", "replay.yaml"],
    ):
        sys.stdout.write(f"flushtracker {' '.join(arguments)}\n")
        sys.stdout.flush()
        _run([str(python), "-m", "flushtracker", *arguments], cwd=folder, environ=environ)


def _run(command: list[str], cwd: Path | None = None, environ: Mapping[str, str] = os.environ) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)} ended with exit code {done.returncode}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Try the one wheel in the folder that is the only argument."""
    (wheel,) = Path(arguments[0]).absolute().glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="flushtracker-wheel-") as scratch:
        (Path(scratch) / "work").mkdir()
        run_recording(install(wheel, Path(scratch) / "venv"), Path(scratch) / "work")
    sys.stdout.write(f"{wheel.name} has written, tracked and verified the recording\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
