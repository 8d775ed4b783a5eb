"""``make verify`` without the programs that it needs says what to install."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize("installed", [(), ("promtool", "prometheus"), ("chromium",)], ids="+".join)
def test_missing_packages_are_named_and_the_exit_code_is_2(tmp_path: Path, installed: tuple[str, ...]) -> None:
    """The names are Debian's, of which ``apt-get install`` takes the whole list."""
    for name in installed:
        (tmp_path / name).touch(mode=0o755)
    command = [sys.executable, "-m", "tests.verify.tools"]
    done = subprocess.run(
        command, cwd=_ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
    )
    proxies = {"nginx-light", "varnish", "squid", "haproxy", "apache2-bin"}
    missing = {"prometheus", "chromium", "chromium-driver", "nodejs", "npm", *proxies} - set(installed)
    assert done.returncode == 2
    assert done.stdout.split() == sorted(missing)
    assert done.stderr.strip().endswith(f"apt-get install {' '.join(sorted(missing))}")


def test_nothing_is_said_where_all_is_there(tmp_path: Path) -> None:
    proxies = ("nginx", "varnishd", "squid", "haproxy", "apache2")
    for name in ("promtool", "prometheus", "chromium", "chromedriver", "node", "npm", *proxies):
        (tmp_path / name).touch(mode=0o755)
    command = [sys.executable, "-m", "tests.verify.tools"]
    done = subprocess.run(command, cwd=_ROOT, env={"PATH": str(tmp_path)}, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
