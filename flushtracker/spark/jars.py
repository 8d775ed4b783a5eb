"""The jars that Spark needs beside its own: ``python -m flushtracker.spark.jars`` fetches them into ``.jars``.

They are named in ``ivy.xml``; :mod:`flushtracker.ivy_jars` tells which variables take them from elsewhere.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flushtracker.ivy_jars import JarSet, fetch_program

SPARK_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("ivy.xml"),
    owner="Spark",
    megabytes=25,
    command="python -m flushtracker.spark.jars",
)


def jar_paths(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The jars, for ``spark.jars``; raises ``ConfigError`` where one is missing."""
    return SPARK_JARS.paths(environ)


if __name__ == "__main__":
    sys.exit(fetch_program(SPARK_JARS))
