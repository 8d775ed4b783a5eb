"""Which way the arrows point: jobs → programs → adapters → pure → errors, read from the imports themselves."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

import flushtracker

ROOT: Final = Path(flushtracker.__file__).parent
CHECKOUT: Final = ROOT.parent

PURE: Final[Mapping[str, frozenset[str]]] = {
    "errors": frozenset(),
    "wal": frozenset({"errors"}),
    "config": frozenset({"errors"}),
    "shapes": frozenset({"config", "wal", "errors"}),
    "events": frozenset({"shapes", "wal", "errors"}),
    "tracking": frozenset({"wal", "errors"}),
}
"""Package → the packages of ours that it may import. No I/O, no clock, no thread, no logger, no subprocess."""

ADAPTERS: Final[Mapping[str, frozenset[str]]] = {
    "process": frozenset({"errors"}),
    "files": frozenset({"errors"}),
    "jvm": frozenset({"errors"}),
    "delta": frozenset({"wal", "errors"}),
    "postgres": frozenset({"shapes", "wal", "errors"}),
    "kafka": frozenset({"config", "events", "errors"}),
}
"""One outside system each, over pure packages alone."""

PROGRAMS: Final[Mapping[str, frozenset[str]]] = {
    "capture": frozenset({*PURE, "process", "delta", "postgres", "kafka"}),
    "spark": frozenset({*PURE, "process", "jvm", "delta", "kafka"}),
    "replay": frozenset({*PURE, "process", "files", "kafka"}),
    "report": frozenset({*PURE, "files", "delta"}),
    "local": frozenset({*PURE, "process", "jvm", "postgres"}),
    "demo": frozenset({*PURE, *ADAPTERS, "capture", "replay", "report", "local"}),
    "cli": frozenset({"process", "errors"}),
}

ARROWS: Final = {**PURE, **ADAPTERS, **PROGRAMS}

OUTSIDE: Final[Mapping[str, frozenset[str]]] = {
    "sortedcontainers": frozenset({"tracking"}),
    "sqlglot": frozenset({"shapes"}),
    "yaml": frozenset({"config"}),
    "psycopg2": frozenset({"postgres"}),
    "confluent_kafka": frozenset({"kafka"}),
    "deltalake": frozenset({"delta"}),
    "pyarrow": frozenset({"delta"}),
    "pyspark": frozenset({"spark"}),
    "py4j": frozenset({"spark"}),
    "pandas": frozenset({"spark"}),
    "rich": frozenset({"report", "demo"}),
    "matplotlib": frozenset({"report"}),
}
"""Third-party package → the packages of ours that may import it."""

PURE_LIBRARY: Final = frozenset(
    [
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "functools",
        "graphlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "struct",
        "typing",
        "unicodedata",
    ]
)
"""The modules of the standard library that pure code may import."""

EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("config.strict_yaml", "os"): "fills ${NAME} from the environment, so that secrets stay out of files",
    ("config.strict_yaml", "pathlib"): "reads the one file that it is given",
    ("config.job_config", "pathlib"): "names the file that strict_yaml reads",
    ("shapes.shapes_file", "pathlib"): "names the file that strict_yaml reads",
}
"""(module, import) that a pure module has although it is not in ``PURE_LIBRARY``, with the reason."""

LEVELS_AT_MOST: Final = 8


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package by its name below ``flushtracker``, with its syntax tree."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        # The package's own face names what it hands on as text; see test_public_api.
        if parts not in {("__init__",), ("__main__",)}:
            yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text())


def imports(tree: ast.Module) -> set[str]:
    """All that is imported anywhere in the module, in functions too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own(names: set[str]) -> set[str]:
    """The packages of ours among the imports; the version is the package's own face."""
    packages = {name.split(".")[1] for name in names if name.startswith("flushtracker.")}
    return packages - {"__version__"}


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_has_its_place() -> None:
    """A new one is pure, an adapter or a program, and says what it may import."""
    assert {package_of(name) for name, _ in modules()} == ARROWS.keys()


def test_imports_follow_the_arrows() -> None:
    """No module imports a package that its own may not."""
    wrong = {
        (name, package)
        for name, tree in modules()
        for package in own(imports(tree)) - {package_of(name)} - ARROWS[package_of(name)]
    }
    assert wrong == set()


def test_arrows_are_not_wider_than_the_imports() -> None:
    """Of pure packages and adapters each arrow is used: one that is not would hide the next wrong import."""
    used: dict[str, set[str]] = {}
    for name, tree in modules():
        used.setdefault(package_of(name), set()).update(own(imports(tree)))
    unused = {(package, other) for package in {**PURE, **ADAPTERS} for other in ARROWS[package] - used[package]}
    assert unused == set()


def test_packages_are_at_most_eight_levels_high() -> None:
    """And no circle: a package stands one level above the highest that it may import."""
    levels: dict[str, int] = {}
    for package in TopologicalSorter(ARROWS).static_order():
        levels[package] = 1 + max((levels[other] for other in ARROWS[package]), default=0)
    assert max(levels.values()) <= LEVELS_AT_MOST


def test_each_outside_package_has_one_home() -> None:
    """So that replacing one touches one package."""
    wrong = {
        (name, outside)
        for name, tree in modules()
        for outside in {imported.partition(".")[0] for imported in imports(tree)} & OUTSIDE.keys()
        if package_of(name) not in OUTSIDE[outside]
    }
    assert wrong == set()


def test_pure_packages_import_pure_code_alone() -> None:
    """A whitelist: what is not in it may read a clock, a file or a socket. Each exception has its reason."""
    allowed = PURE_LIBRARY | {name for name, homes in OUTSIDE.items() if homes <= PURE.keys()}
    impure = {
        (name, top)
        for name, tree in modules()
        if package_of(name) in PURE
        for top in {imported.partition(".")[0] for imported in imports(tree)} - allowed - {"flushtracker"}
    }
    assert impure == EXCEPTIONS.keys()


def test_pure_packages_call_no_clock_and_no_file() -> None:
    """What needs no import, or hides in an allowed one: ``open``, ``print``, ``datetime.now``."""
    calls = {
        (name, function.attr if isinstance(function, ast.Attribute) else function.id)
        for name, tree in modules()
        if package_of(name) in PURE
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(function := node.func, ast.Attribute | ast.Name)
    }
    forbidden = {"open", "print", "input", "exec", "eval", "now", "utcnow", "today", "__import__"}
    assert {(name, function) for name, function in calls if function in forbidden} == set()


def test_checks_see_what_they_look_for() -> None:
    """An import inside a function counts, and so does each name of one statement."""
    tree = ast.parse("def f():\n    from flushtracker.spark import rows, driver\n    import os.path\n")
    assert imports(tree) == {"flushtracker.spark.rows", "flushtracker.spark.driver", "os.path"}
    assert own(imports(tree)) == {"spark"}
    assert {"tracking.flush_tracker", "spark.driver", "cli", "shapes.where"} <= {name for name, _ in modules()}


IMPORT_ALL = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
for module in sys.argv[2:]:
    importlib.import_module(f"flushtracker.{module}")
"""


def import_without(blocked: set[str], *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(sorted(blocked)), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)


@pytest.mark.parametrize("package", sorted({**PURE, **ADAPTERS, "cli": frozenset()}))
def test_package_imports_with_its_own_outside_packages_alone(package: str) -> None:
    """In a fresh interpreter that can import nothing else, also not by way of another package of ours."""
    reached, todo = set[str](), [package]
    while todo:
        reached.add(name := todo.pop())
        todo.extend(ARROWS[name] - reached)
    blocked = {outside for outside, homes in OUTSIDE.items() if not homes & reached}
    done = import_without(blocked, *(name for name, _ in modules() if package_of(name) == package))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["kafka_config", "records", "topic_rules"])
def test_rules_of_kafka_import_without_its_client(module: str) -> None:
    """The tracker reads Kafka through Spark, and the rules about topics apply to it too."""
    done = import_without({"confluent_kafka", "pyspark"}, f"kafka.{module}")
    assert done.returncode == 0, done.stderr


def test_executors_import_the_state_function_without_the_drivers_packages() -> None:
    """They have pyspark, pandas, pyarrow, and what ``--py-files`` ships: this package and sortedcontainers."""
    done = import_without(
        OUTSIDE.keys() - {"pyspark", "py4j", "pandas", "pyarrow", "sortedcontainers"}, "spark.group_state"
    )
    assert done.returncode == 0, done.stderr


def test_blocked_package_is_missed() -> None:
    """The blocker works: without pyspark the driver does not import."""
    assert "pyspark is blocked" in import_without({"pyspark"}, "spark.driver").stderr
