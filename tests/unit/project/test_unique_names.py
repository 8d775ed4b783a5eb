"""One name, one thing: no public class, function or module has the name of another, but for those listed here."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import flushtracker

ROOT: Final = Path(flushtracker.__file__).parent
CHECKOUT: Final = ROOT.parent

REPEATED_MODULES: Final = {
    "__init__": "every package has one",
    "program": "what a command runs, from its arguments to its exit code",
    "query": "a Spark job's streaming query; `track` and `write` have the same four modules, and the same steps",
    "rows": "a Spark job's input: events into rows",
    "group_state": "a Spark job's state function, on the executors",
    "driver": "a Spark job's side of a micro-batch on the driver",
}
"""Modules that may have the same name in several packages, each with the reason."""

REPEATED_FUNCTIONS: Final = {
    "main": "a program's start",
    "run": "what a command runs, from its arguments to its exit code",
    "now_ms": "the same in two rooms that may not import each other",
}
"""Public functions that may have the same name in several modules, each with the reason."""

STRUCTS: Final = ROOT / "events" / "structs.py"
"""The JSON of other classes, with the same names: those are always written with the module, ``structs.Shape``."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def definitions() -> list[tuple[type[ast.stmt], str, Path]]:
    """The kind, name and path of each public class and function of all modules."""
    return [
        (type(node), node.name, path)
        for path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


def public(kind: type[ast.stmt]) -> Iterator[tuple[str, Path]]:
    return ((name, path) for each, name, path in definitions() if each is kind)


def repeated(found: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that stand for several files."""
    places = defaultdict(list)
    for name, path in found:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_two_public_classes_have_the_same_name() -> None:
    """A name in a message, a page or a traceback then stands for one class."""
    assert repeated((name, path) for name, path in public(ast.ClassDef) if path != STRUCTS) == {}


def test_only_listed_modules_have_the_same_name() -> None:
    """An entry of the list that is not needed any more is wrong, too."""
    assert repeated((path.stem, path) for path in modules()).keys() == REPEATED_MODULES.keys()


def test_only_listed_functions_have_the_same_name() -> None:
    """Whoever searches for the definition of a call finds one."""
    assert repeated(public(ast.FunctionDef)).keys() == REPEATED_FUNCTIONS.keys()


def test_structs_are_written_with_their_module() -> None:
    """Those that have the name of another class, which excepts them from the rule."""
    names = repeated(public(ast.ClassDef)).keys()
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {alias.name}"
        for folder in (ROOT, CHECKOUT / "tests", CHECKOUT / "jobs")
        for path in sorted(folder.rglob("*.py"))
        if "flushtracker.events.structs" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "flushtracker.events.structs"
        for alias in node.names
        if alias.name in names
    ]
    assert names, "the rule has no exception any more"
    assert wrong == []
