"""The log4j2 configuration that ``flushtracker dist`` writes for executors, read by the log4j of Spark."""

import os
import subprocess
from pathlib import Path
from typing import Final

from flushtracker.jvm.ivy_jars import spark_jar_folder
from flushtracker.jvm.java import check_java
from flushtracker.spark import dist

_SCRIPT: Final = """
org.apache.logging.log4j.Logger logger = org.apache.logging.log4j.LogManager.getLogger("x");
String line = new String(new char[10000]).replace('\\0', 'x');
for (int number = 0; number < 9000; number++) logger.info(line);
logger.error("an error");
"""


def test_executors_log_is_rolled_and_its_errors_are_on_stderr(tmp_path: Path) -> None:
    """The last 60 of 90 MB are kept. A worker's page shows stderr, which stays small."""
    classes = os.pathsep.join(map(str, spark_jar_folder().glob("*.jar")))
    command = [str(check_java().launcher), "-cp", classes, f"-Dlog4j2.configurationFile={dist._LOG_CONFIG}"]
    command += ["org.codehaus.commons.compiler.samples.ScriptDemo", _SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ERROR ")[2] for line in done.stderr.splitlines()] == ["x: an error"]
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert {*sizes} == {"executor.log", *(f"executor.log.{number}" for number in range(1, 6))}
    assert sum(sizes.values()) < 61 << 20
