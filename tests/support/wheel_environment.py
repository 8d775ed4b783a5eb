"""A virtual environment with this checkout's package as a wheel, and the other packages of the tests' own one."""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Final

from tests.support.processes import run_to_end

_ROOT: Final = Path(__file__).parents[2]
_BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
_BUILT: Final = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "MANIFEST.in",
    "conf",
    "docs",
    "flushtracker",
    "jobs",
)


class WheelEnvironment:
    """In a new folder; ``bin`` has its commands. Nothing is downloaded."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        with tempfile.TemporaryDirectory(prefix="flushtracker-wheel-") as tree:
            for name in _BUILT:
                source, target = _ROOT / name, Path(tree) / name
                if source.is_dir():
                    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copyfile(source, target)
            subprocess.run([sys.executable, "-c", _BUILD, tree], cwd=tree, capture_output=True, check=True)
            (wheel,) = Path(tree).glob("*.whl")
            pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-deps", "--no-index"]
            subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], capture_output=True, check=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (own / "others.pth").write_text(others)
        found = run_to_end(
            [str(self.python), "-c", "import flushtracker; print(flushtracker.__file__)"], cwd=folder
        ).stdout
        assert found.startswith(f"{folder}/"), f"the wheel is in {folder}, and flushtracker is {found}"
