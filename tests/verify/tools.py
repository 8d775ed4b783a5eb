"""``python -m tests.verify.tools``: prints which packages ``make verify`` lacks, and then exits with 2."""

import shutil
import sys
from typing import Final

_PACKAGES: Final = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "node": "nodejs",
    "npm": "npm",
    "nginx": "nginx-light",
    "varnishd": "varnish",
    "squid": "squid",
    "haproxy": "haproxy",
    "apache2": "apache2-bin",
}


def missing_packages() -> list[str]:
    """The packages of those programs that are not on the path."""
    return sorted({package for program, package in _PACKAGES.items() if shutil.which(program) is None})


if __name__ == "__main__":
    if missing := " ".join(missing_packages()):
        print(missing)  # noqa: T201
        print(  # noqa: T201
            f"make verify needs programs that are not installed; on Debian: apt-get install {missing}",
            file=sys.stderr,
        )
        sys.exit(2)
