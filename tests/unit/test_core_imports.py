"""Which way the arrows point: the core needs nothing but the standard library and three small packages."""

import subprocess
import sys
from pathlib import Path

import pytest

import flushtracker

ROOT = Path(flushtracker.__file__).parent
# The report that `make run` prints and plots has packages of its own, in an optional extra; the demo runs everything.
OUTSIDE_THE_CORE = {"spark", "postgres", "kafka", "delta", "report", "demo"}
BLOCKED = ("pyspark", "py4j", "delta", "deltalake", "pandas", "pyarrow", "numpy", "psycopg2", "confluent_kafka", "rich")

IMPORT_WITHOUT = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
importlib.import_module(sys.argv[1])
"""


def core_modules() -> list[str]:
    """Every module but those that need Spark, Delta, PostgreSQL, Kafka or a plot."""
    paths = [path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py")]
    parts = [path.parts[:-1] if path.name == "__init__" else path.parts for path in paths]
    return sorted(".".join(names) for names in parts if not OUTSIDE_THE_CORE & set(names))


def import_without(module: str, *packages: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_WITHOUT, module, ",".join(packages)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT.parent)


@pytest.mark.parametrize("module", core_modules())
def test_core_module_imports_without_spark_delta_and_postgresql(module: str) -> None:
    """Each module alone, in a fresh interpreter that can import none of the big packages."""
    done = import_without(module, *BLOCKED)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["keys", "kafka_config", "topic_rules"])
def test_rules_of_kafka_import_without_its_client(module: str) -> None:
    """The tracker reads Kafka through Spark, and the rules about topics hold for it too."""
    done = import_without(f"flushtracker.kafka.{module}", *BLOCKED)
    assert done.returncode == 0, done.stderr


def test_blocked_package_is_missed() -> None:
    """The blocker works: without pyspark the Spark package's driver does not import."""
    assert "pyspark is blocked" in import_without("flushtracker.spark.driver", "pyspark").stderr


def test_core_is_not_empty() -> None:
    """The list above has found the modules that matter."""
    assert {"flushtracker.flush_tracker", "flushtracker.events", "flushtracker.shape_group"} <= set(core_modules())
