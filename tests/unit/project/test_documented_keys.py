"""``docs/configuration.md`` has every key that the shapes file and the stores may have.

Those of ``flushtracker.yaml`` are in ``tests/unit/config/test_one_file.py``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import flushtracker

ROOT: Final = Path(flushtracker.__file__).parent
PAGE: Final = (ROOT.parent / "docs" / "configuration.md").read_text()


def allowed_keys() -> set[str]:
    """The strings in all calls ``section.allow(…)``, and in the tuples that they unpack."""
    keys = set[str]()
    for tree in (ast.parse(path.read_text()) for path in ROOT.rglob("*.py") if ".allow(" in path.read_text()):
        unpacked = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "allow":
                keys |= set(strings(*node.args))
                unpacked |= {getattr(part.value, "id", "") for part in node.args if isinstance(part, ast.Starred)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and {getattr(target, "id", "") for target in node.targets} & unpacked:
                keys |= set(strings(node.value))
    return keys


def strings(*nodes: ast.expr) -> Iterator[str]:
    parts = (part for node in nodes for part in ast.walk(node))
    return (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def test_every_key_is_documented() -> None:
    """By its name, or in a path such as ``storage.s3.region``."""
    named = {key for path in re.findall(r"`([\w.]+)`", PAGE) for key in path.split(".")}
    assert allowed_keys() - named == set()


def test_keys_are_found_in_every_reader() -> None:
    """One of each, so that the test above cannot pass because it finds nothing."""
    assert {"secret_access_key", "service_account", "depends_on", "allow_removing", "chunk_bytes"} <= allowed_keys()
