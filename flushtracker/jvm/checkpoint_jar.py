"""A jar with one class, ``DirectCheckpointFiles.java``, with which Spark writes a checkpoint's files on S3.

It is compiled for the installed Spark, by the compiler that Spark includes for generated code, so that no JDK is
needed. It is kept beside the locked jars of S3, and passed to a cluster with them.
"""

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.jvm.ivy_jars import jar_folder, spark_jar_folder
from flushtracker.jvm.jar_lock import sha256_of
from flushtracker.jvm.java import check_java
from flushtracker.jvm.spark_version import installed_version, supported_minor

CLASS: Final = "flushtracker.DirectCheckpointFiles"
_SOURCE: Final = Path(__file__).with_name("DirectCheckpointFiles.java")
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
# The oldest time that the zip format can hold.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def streaming_package(spark_version: str) -> str:
    """Spark's package with the checkpoint classes, which Spark 4.1 moved."""
    package = "org.apache.spark.sql.execution.streaming"
    return package if spark_version.startswith("4.0.") else f"{package}.checkpointing"


def checkpoint_jar(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the jar for this source and this Spark, whether it exists or not."""
    return jar_folder(environ) / "s3" / f"{_prefix()}{sha256_of(_SOURCE)[:12]}.jar"


def build_checkpoint_jar(environ: Mapping[str, str] = os.environ) -> Path:
    """Compile the class, unless it was compiled, or ``FLUSHTRACKER_JARS`` names a folder, which is never modified.

    Raises:
        ConfigError: there is no Java, or Spark's compiler refuses the class.
    """
    jar = checkpoint_jar(environ)
    if jar.exists() or environ.get("FLUSHTRACKER_JARS"):
        return jar
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=jar.parent) as scratch:
        classes = _compile(Path(scratch), check_java(environ).launcher)
        written = Path(scratch) / jar.name
        with zipfile.ZipFile(written, "w") as archive:
            for file in classes:
                archive.writestr(zipfile.ZipInfo(f"flushtracker/{file.name}", _TIME), file.read_bytes())
        for outdated in jar.parent.glob(f"{_prefix()}*.jar"):
            outdated.unlink()
        written.replace(jar)
    return jar


def _prefix() -> str:
    return f"flushtracker-checkpoints_{supported_minor(installed_version())}-"


def _compile(scratch: Path, java: Path) -> list[Path]:
    source, jars = scratch / _SOURCE.name, spark_jar_folder()
    text = _SOURCE.read_text(encoding="utf-8")
    source.write_text(text.replace("STREAMING", streaming_package(installed_version())), encoding="utf-8")
    compiler = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    command = [str(java), "-cp", os.pathsep.join(map(str, compiler)), _COMPILER, "-d", str(scratch)]
    command += ["-classpath", os.pathsep.join(map(str, sorted(jars.glob("*.jar")))), str(source)]
    done = subprocess.run(  # noqa: S603  our own command, and the user's own Java
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    classes = sorted((scratch / "flushtracker").glob("*.class"))
    if not classes:
        raise ConfigError(f"Spark's compiler refuses {_SOURCE.name}: {done.stdout.strip() or 'without a reason'}")
    return classes
