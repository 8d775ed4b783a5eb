"""The layers of the package, checked against its imports: programs → adapters → pure → errors."""

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

import flushtracker
from tests.support.import_blocker import run_without

ROOT: Final = Path(flushtracker.__file__).parent
CHECKOUT: Final = ROOT.parent

PURE: Final[Mapping[str, frozenset[str]]] = {
    "errors": frozenset(),
    "wal": frozenset({"errors"}),
    "config": frozenset({"errors"}),
    "shapes": frozenset({"config", "errors", "wal"}),
    "events": frozenset({"config", "errors", "shapes", "wal"}),
    "tracking": frozenset({"errors", "wal"}),
    "shape_log": frozenset({"errors", "events", "shapes", "wal"}),
    "sinks": frozenset({"errors", "events", "shapes", "wal"}),
    "status": frozenset({"config", "errors", "wal"}),
}
"""Room → our rooms that it may import. Pure code has no I/O, clock, thread, logger or subprocess."""

ADAPTERS: Final[Mapping[str, frozenset[str]]] = {
    "process": frozenset({"errors"}),
    "disk_sync": frozenset(),
    "event_files": frozenset({"disk_sync", "errors"}),
    "jvm": frozenset({"errors"}),
    "tls": frozenset(),
    "delta": frozenset({"config", "disk_sync", "errors", "events"}),
    "tracking.acks": frozenset({"delta", "errors", "wal"}),
    "shape_log.table": frozenset({"delta", "errors", "events", "shape_log", "shapes", "wal"}),
    "postgres": frozenset({"errors", "shapes", "status", "tls", "wal"}),
    "kafka": frozenset({"config", "errors", "events", "tls", "wal"}),
    "status.http": frozenset({"config", "errors", "process", "status"}),
    "local": frozenset({"errors", "jvm", "postgres", "process"}),
    "spark": frozenset({"config", "delta", "errors", "events", "jvm", "kafka", "process", "wal"}),
    "shape_log.spark": frozenset({"delta", "errors", "shape_log", "shape_log.table", "shapes", "spark", "wal"}),
}
"""Each wraps one outside system. What it imports besides pure rooms is below it: Spark reads the tables of Delta."""

PROGRAMS: Final[Mapping[str, frozenset[str]]] = {
    "capture.wire": frozenset({"config", "errors", "events", "postgres", "shapes", "wal"}),
    "capture.shapes": frozenset({*PURE, "capture.wire"}),
    "capture.source": frozenset({*PURE, "capture.shapes", "capture.wire", "kafka", "postgres", "process"}),
    "capture.eviction": frozenset({*PURE, "capture.shapes", "process", "status.http"}),
    "capture": frozenset(
        {
            *(*PURE, "capture.eviction", "capture.shapes", "capture.source", "capture.wire", "kafka"),
            *("postgres", "process", "status.http", "tracking.acks"),
        }
    ),
    "tracking.job": frozenset({*PURE, "delta", "process", "spark", "status.http", "tracking.acks"}),
    "shape_log.snapshot": frozenset(
        {*PURE, "delta", "kafka", "postgres", "process", "shape_log.spark", "shape_log.table", "spark", "status.http"}
    ),
    "shape_log.write": frozenset(
        {
            *(*PURE, "delta", "event_files", "kafka", "process", "shape_log.snapshot", "shape_log.spark"),
            *("shape_log.table", "spark", "status.http", "tracking.acks"),
        }
    ),
    "sinks.job": frozenset(
        {*("config", "errors", "events", "kafka", "process", "shape_log", "sinks", "status", "status.http", "wal")}
    ),
    "serve": frozenset({*PURE, "delta", "kafka", "process", "shape_log.table", "status.http"}),
    "operate": frozenset({*PURE, "capture", "kafka", "process", "shape_log.table", "sinks.job"}),
    "operate.report": frozenset({*PURE, "event_files", "tracking.acks"}),
    "operate.shapes": frozenset(
        {*PURE, "capture", "capture.shapes", "capture.source", "disk_sync", "kafka", "postgres"}
    ),
    "operate.init": frozenset({*PURE, "operate.shapes", "postgres"}),
    "operate.jobs": frozenset({"shape_log.write", "spark", "tracking.job"}),
    "operate.status": frozenset(
        {*PURE, "capture", "capture.source", "kafka", "postgres", "process", "status.http", "tracking.acks"}
    ),
    "operate.up": frozenset(
        {"config", "errors", "jvm", "local", "operate.status", "process", "shapes", "status", "status.http", "wal"}
    ),
    "cli": frozenset({"config", "errors", "process", "shape_log", "wal"}),
}

TRIALS: Final[Mapping[str, frozenset[str]]] = {
    "trials": frozenset(),
    "trials.power_failure": frozenset({"errors"}),
    "trials.warmup": frozenset({*PURE, "cli", "jvm", "kafka", "local", "process"}),
    "trials.recordings": frozenset({*PURE, "event_files", "kafka", "process", "shape_log.table"}),
    "trials.conformance": frozenset({*PURE, "kafka", "local", "process", "trials.power_failure"}),
    "trials.loop_trial": frozenset(
        {
            *(*PURE, "jvm", "kafka", "local", "postgres", "process", "shape_log.table", "tracking.acks"),
            "trials.recordings",
        }
    ),
    "trials.demo": frozenset({*PURE, *ADAPTERS, "capture", "operate.status", "operate.up", "trials.recordings"}),
}
"""What tries the product. Nothing of the product imports it."""

MAY_IMPORT: Final = {**PURE, **ADAPTERS, **PROGRAMS, **TRIALS}

THIRD_PARTY: Final[Mapping[str, frozenset[str]]] = {
    "sortedcontainers": frozenset({"tracking"}),
    "numpy": frozenset({"spark", "tracking", "tracking.job"}),
    "yaml": frozenset({"config"}),
    "msgspec": frozenset({"events", "shape_log", "sinks", "status"}),
    "psycopg": frozenset({"postgres"}),
    "confluent_kafka": frozenset({"kafka"}),
    "deltalake": frozenset({"delta", "tracking.acks", "shape_log.table"}),
    "obstore": frozenset({"delta"}),
    "pyarrow": frozenset(
        {
            *("delta", "operate", "serve", "shape_log.snapshot", "shape_log.spark", "shape_log.table"),
            *("shape_log.write", "tracking.acks", "tracking.job"),
        }
    ),
    "pyspark": frozenset({"spark", "shape_log.snapshot", "shape_log.spark", "shape_log.write", "tracking.job"}),
    "py4j": frozenset({"spark"}),
    "pandas": frozenset({"shape_log.table", "shape_log.write", "spark", "tracking.job"}),
    "rich": frozenset({"operate.report"}),
    "uvicorn": frozenset({"serve", "status.http"}),
    "prometheus_client": frozenset({"status.http"}),
    "matplotlib": frozenset({"operate.report"}),
}
"""Third-party package → our rooms that may import it."""

PURE_LIBRARY: Final = frozenset(
    [
        "array",
        "base64",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "struct",
        "types",
        "typing",
        "zlib",
        "unicodedata",
    ]
)
"""Standard library modules that pure code may import."""

EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("config.strict_yaml", "os"): "fills ${NAME} from the environment, so that secrets stay out of files",
    ("config.yaml_tree", "pathlib"): "reads the one file that it is given",
    ("config.strict_yaml", "pathlib"): "names the file that yaml_tree reads",
    ("config.one_file", "pathlib"): "names the file that yaml_tree reads",
    ("config.job_config", "pathlib"): "names the file that yaml_tree reads",
    ("config.serve_config", "pathlib"): "names the file that yaml_tree reads",
    ("config.snapshot_config", "pathlib"): "names the file that yaml_tree reads",
    ("config.write_config", "pathlib"): "names the file that yaml_tree reads",
    ("config.storage_path", "os"): "follows symbolic links, to see where a path leads",
    ("config.storage_path", "urllib"): "decodes a file: URI",
    ("config.libpq_text", "psycopg"): "has libpq parse a connection string; imported by whoever has one",
    ("shapes.shapes_file", "pathlib"): "names the file that yaml_tree reads",
    ("status.shapes_remedy", "shlex"): "quotes the words of a command",
}
"""(module, import) pairs outside ``PURE_LIBRARY`` that pure code may have, each with its reason."""

ON_EXECUTORS: Final = frozenset(
    {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "deltalake", "msgspec", "sortedcontainers"}
)
"""Spark provides the first two, and ``--py-files`` the last."""

MAX_LAYERS: Final = 11


@cache
def modules() -> Mapping[str, set[str]]:
    """What every module of the package imports, by its name below ``flushtracker``."""
    return {name: imports(ast.parse(path.read_text())) for name, path in module_paths()}


def module_paths() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        # These two are the package's entry points and belong to no layer.
        if parts not in {("__init__",), ("__main__",)}:
            yield ".".join(part for part in parts if part != "__init__"), path


def imports(tree: ast.Module) -> set[str]:
    """Every name imported anywhere in the module, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_rooms(names: set[str]) -> set[str]:
    """Our rooms among the imports, without the version, which belongs to no layer."""
    modules = {name.removeprefix("flushtracker.") for name in names if name.startswith("flushtracker.")}
    return {room_of(module) for module in modules - {"__version__"}}


def room_of(module: str) -> str:
    """The package that a module is in: the innermost one that is listed, otherwise the outermost."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), parts[0])


def test_every_room_has_a_layer() -> None:
    """A new room must be listed as pure, adapter or program, with what it may import."""
    assert {room_of(name) for name in modules()} == MAY_IMPORT.keys()


def test_modules_import_only_what_their_room_may() -> None:
    """No module imports one of our rooms that its own room may not import."""
    wrong = {
        (name, package)
        for name, imported in modules().items()
        for package in own_rooms(imported) - {room_of(name)} - MAY_IMPORT[room_of(name)]
    }
    assert wrong == set()


def test_every_permitted_import_is_used() -> None:
    """An unused permission of a pure room or an adapter would hide the next wrong import."""
    used: dict[str, set[str]] = {}
    for name, imported in modules().items():
        used.setdefault(room_of(name), set()).update(own_rooms(imported))
    unused = {(package, other) for package in {**PURE, **ADAPTERS} for other in MAY_IMPORT[package] - used[package]}
    assert unused == set()


def test_architecture_page_shows_the_permitted_imports() -> None:
    """Its table has one row per room, with everything that the package may import."""
    section = (CHECKOUT / "docs" / "architecture.md").read_text().split("\n## ")[3]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]*) \| ", section, re.MULTILINE)
    documented = {
        room: frozenset(re.findall(r"`([\w.]+)`", allowed)).union(
            *(rooms for words, rooms in (("all pure rooms", PURE), ("all adapters", ADAPTERS)) if words in allowed)
        )
        for room, allowed in rows
    }
    assert documented == MAY_IMPORT


def test_modules_on_the_architecture_page_exist() -> None:
    """By their dotted name or their path."""
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    paths = {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.py")}
    rooms = {room.partition(".")[0] for room in MAY_IMPORT if (ROOT / room.partition(".")[0]).is_dir()}
    dotted = {name.replace(".", "/") for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", page)}
    named = {name for name in dotted if name.partition("/")[0] in rooms and not (ROOT / name).is_dir()}
    named |= {name for name in re.findall(r"`([a-z_/]+)\.py`", page) if not (CHECKOUT / f"{name}.py").exists()}
    assert named - paths == {"capture/intervals/shapes"}  # a configuration key
    assert len(named) > 80


def test_the_product_imports_no_trial() -> None:
    """What tries it could be a distribution of its own."""
    assert {room: allowed & TRIALS.keys() for room, allowed in MAY_IMPORT.items() if room not in TRIALS} == {
        room: frozenset() for room in MAY_IMPORT.keys() - TRIALS.keys()
    }


def test_unit_tests_mirror_the_wings() -> None:
    """Whoever opens a wing knows where its tests are; those of the checkout as a whole are in ``project``."""
    unit = CHECKOUT / "tests" / "unit"
    wings = {room.partition(".")[0] for room in MAY_IMPORT}
    folders = {wing for wing in wings if (ROOT / wing).is_dir()}
    assert {path.parent.name for path in unit.glob("*/__init__.py")} == {*folders, "project"}
    assert {path.stem.removeprefix("test_") for path in unit.glob("test_*.py")} <= wings - folders


def test_rooms_form_few_layers() -> None:
    """There is no cycle; a package is one layer above the highest that it may import."""
    layers: dict[str, int] = {}
    for package in TopologicalSorter(MAY_IMPORT).static_order():
        layers[package] = 1 + max((layers[other] for other in MAY_IMPORT[package]), default=0)
    assert max(layers.values()) <= MAX_LAYERS


def test_third_party_packages_are_imported_only_where_listed() -> None:
    """So replacing one touches few packages."""
    wrong = {
        (name, third_party)
        for name, imported in modules().items()
        for third_party in {each.partition(".")[0] for each in imported} & THIRD_PARTY.keys()
        if room_of(name) not in THIRD_PARTY[third_party] and (name, third_party) not in EXCEPTIONS
    }
    assert wrong == set()


def test_pure_packages_import_only_pure_code() -> None:
    """An allowlist: a module that is not on it may read a clock, a file or a socket."""
    allowed = PURE_LIBRARY | {name for name, users in THIRD_PARTY.items() if users <= PURE.keys()} | {"numpy"}
    impure = {
        (name, top)
        for name, imported in modules().items()
        if room_of(name) in PURE
        for top in {each.partition(".")[0] for each in imported} - allowed - {"flushtracker"}
    }
    assert impure == EXCEPTIONS.keys()


def test_pure_packages_call_no_clock_and_no_file() -> None:
    """Covers calls that need no import, or hide in an allowed one: ``open``, ``print``, ``datetime.now``."""
    calls = {
        (name, function.attr if isinstance(function, ast.Attribute) else function.id)
        for name, path in module_paths()
        if room_of(name) in PURE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(function := node.func, ast.Attribute | ast.Name)
    }
    forbidden = {"open", "print", "input", "exec", "eval", "now", "utcnow", "today", "__import__"}
    assert {(name, function) for name, function in calls if function in forbidden} == set()


def test_what_tests_share_is_in_support() -> None:
    """But for what runs the tests of others with faults built in."""
    borrowers = {
        (path.stem, imported)
        for path in (CHECKOUT / "tests").rglob("*.py")
        for imported in imports(ast.parse(path.read_text()))
        if re.search(r"^tests\.\w+\.test_", imported)
    }
    assert {who for who, _ in borrowers} == {"test_proof_mutants"}


def test_checks_find_the_imports_that_they_look_for() -> None:
    """An import inside a function counts, and so does each name of one statement."""
    tree = ast.parse("def f():\n    from flushtracker.tracking.job import rows, driver\n    import os.path\n")
    assert imports(tree) == {"flushtracker.tracking.job.rows", "flushtracker.tracking.job.driver", "os.path"}
    assert own_rooms(imports(tree)) == {"tracking.job"}
    assert {"tracking.flush_tracker", "tracking.job.driver", "cli", "shapes.where"} <= modules().keys()


def import_without(blocked: Set[str], *names: str) -> subprocess.CompletedProcess[str]:
    return run_without(blocked, "\n".join(f"import flushtracker.{name}" for name in names))


def blocked_for(package: str) -> frozenset[str]:
    """The third-party packages that a package does not depend on."""
    reached, todo = set[str](), [package]
    while todo:
        reached.add(name := todo.pop())
        todo.extend(MAY_IMPORT[name] - reached)
    return frozenset(third_party for third_party, users in THIRD_PARTY.items() if not users & reached)


_ALIKE: Final = {
    " ".join(packages): blocked
    for blocked in {blocked_for(package) for package in [*PURE, *ADAPTERS, "cli"]}
    if (packages := sorted(each for each in [*PURE, *ADAPTERS, "cli"] if blocked_for(each) == blocked))
}
"""The packages that depend on the same third-party packages, and those that they do not depend on."""


@pytest.mark.parametrize("packages", sorted(_ALIKE))
def test_packages_import_with_only_their_own_third_party_packages(packages: str) -> None:
    """In a fresh interpreter that blocks every third-party package that they do not depend on."""
    done = import_without(_ALIKE[packages], *(name for name in modules() if room_of(name) in packages.split()))
    assert done.returncode == 0, done.stderr


def test_kafka_rules_import_without_the_kafka_client() -> None:
    """The tracker reads Kafka through Spark, and the rules about topics apply to it too."""
    done = import_without({"confluent_kafka", "pyspark"}, "kafka.kafka_config", "events.records", "events.topic_rules")
    assert done.returncode == 0, done.stderr


def test_rules_of_the_programs_import_without_any_server_or_spark() -> None:
    """They need neither a client nor a connection, so unit tests reach them."""
    modules = [
        *("capture.collector", "capture.wire.history_check", "capture.wire.outbox", "capture.shapes.shape_registry"),
        *("capture.shapes.shapes_file_reader", "capture.wire.standby_status", "capture.shapes.subscriptions"),
        *("trials.recordings.replay", "spark.dist"),
    ]
    done = import_without(THIRD_PARTY.keys() - {"sortedcontainers", "numpy", "yaml", "msgspec"}, *modules)
    assert done.returncode == 0, done.stderr


def test_executors_import_their_functions_without_the_drivers_packages() -> None:
    """Executors have pyspark, pandas with numpy, pyarrow, deltalake, and what ``--py-files`` ships."""
    modules = [
        *(
            "tracking.job.group_state",
            "tracking.job.rows",
            "shape_log.write.group_state",
            "shape_log.write.stored_rows",
        ),
        *("delta.row_files", "delta.dead_letter_table", "shape_log.spark.task_files", "spark.workers"),
    ]
    done = import_without(THIRD_PARTY.keys() - ON_EXECUTORS, *modules)
    assert done.returncode == 0, done.stderr


def test_executors_read_tables_with_psycopg_alone() -> None:
    """Besides the packages that all executors have."""
    done = import_without(THIRD_PARTY.keys() - ON_EXECUTORS - {"psycopg"}, "shape_log.snapshot.read_ranges")
    assert done.returncode == 0, done.stderr


def test_snapshots_are_published_without_spark_and_tables() -> None:
    """By an install with the extra capture alone."""
    available = {"yaml", "msgspec", "psycopg", "confluent_kafka", "pyarrow", "uvicorn", "prometheus_client"}
    done = import_without(
        THIRD_PARTY.keys() - available, "shape_log.snapshot.program", "shape_log.snapshot.kafka_snapshots"
    )
    assert done.returncode == 0, done.stderr


def test_server_without_a_tail_needs_no_kafka_client() -> None:
    """Only the module that reads the tail imports it, and the server imports that one if a tail is configured."""
    served = {name: imported for name, imported in modules().items() if room_of(name) == "serve"}
    users = {name for name, imported in served.items() if "kafka" in own_rooms(imported)}
    assert users == {"serve.tail.tail_reader"}
    done = import_without({"confluent_kafka"}, "serve.program")
    assert done.returncode == 0, done.stderr


def test_blocked_package_cannot_be_imported() -> None:
    """The blocker works: without pyspark the driver does not import."""
    assert "No module named 'pyspark'" in import_without({"pyspark"}, "tracking.job.driver").stderr
