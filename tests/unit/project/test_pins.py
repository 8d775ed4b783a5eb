"""``constraints.txt``: the exact version of everything that is installed, on each Python."""

import sys
from importlib.metadata import metadata, requires, version
from typing import Final

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from flushtracker.jvm.spark_version import LOCKED
from tests.pins import ROOT, Pin, all_pins, user_extras, user_pins
from tests.support.package_closure import package_closure

TEXT: Final = (ROOT / "constraints.txt").read_text()
HERE: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13", "3.14")


def pinned(pins: list[Pin], python: str) -> dict[str, str]:
    """The version of each package on that Python; a package with two has none."""
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    there = [pin for pin in pins if not pin.marker or Marker(pin.marker).evaluate(environment)]
    versions = {pin.name: pin.version for pin in there}
    assert len(versions) == len(there)
    return versions


@pytest.mark.parametrize("python", PYTHONS)
def test_all_that_an_extra_installs_is_pinned_on_each_python(python: str) -> None:
    """Also what no line of ours names, such as py4j, which the exact pyspark depends on."""
    extras = user_extras()
    assert {"spark", "capture", "serve", "demo", "report"} <= set(extras)
    for_users, everything = pinned(user_pins(TEXT), python), pinned(all_pins(TEXT), python)
    assert for_users.items() < everything.items()
    assert package_closure(extras, python) - for_users.keys() == set()
    assert package_closure(["dev"], python) - everything.keys() == set()


def test_what_is_installed_here_is_what_is_pinned() -> None:
    """And nothing is pinned that nobody needs, or among what users install if only the tests need it."""
    for_users, everything = pinned(user_pins(TEXT), HERE), pinned(all_pins(TEXT), HERE)
    assert package_closure(user_extras(), HERE) == for_users.keys()
    assert package_closure(["dev"], HERE) == everything.keys()
    del everything["pyspark"]
    assert version("pyspark") in LOCKED.values()
    # Not all that is found: setuptools, once imported, has other versions of its own at the end of the path.
    assert {name: version(name) for name in everything} == everything


@pytest.mark.parametrize("python", PYTHONS)
def test_pins_are_in_the_ranges_and_support_each_python(python: str) -> None:
    """A package that no one version of installs on every Python has several; those installed here say for which."""
    pins = pinned(all_pins(TEXT), python)
    required = [Requirement(text) for text in requires("flushtracker") or []]
    for requirement in required:
        if requirement.name != "flushtracker":
            assert Version(pins[canonicalize_name(requirement.name)]) in requirement.specifier, requirement
    installed = [name for name in pins if name in pinned(all_pins(TEXT), HERE) and version(name) == pins[name]]
    assert len(installed) > 90
    allowed = {name: metadata(name).json.get("requires_python", "") for name in installed}
    assert {name: pythons for name, pythons in allowed.items() if python not in SpecifierSet(pythons)} == {}


def test_a_pin_is_a_line_and_back() -> None:
    for line in (line for line in TEXT.splitlines() if not line.startswith("#")):
        assert str(Pin.parse(line)) == line
