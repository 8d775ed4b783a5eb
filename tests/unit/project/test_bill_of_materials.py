"""The bill of materials and the lists of jars of a release have everything that a user may get."""

import json
import sys
from importlib.resources import files
from typing import Any, Final

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from flushtracker.jvm.jar_lock import read_sums
from tests.bill_of_materials import bill_of_materials
from tests.pins import ROOT, user_extras
from tests.support.package_closure import package_closure

BILL: Final = bill_of_materials(ROOT, 1_700_000_000)
PURLS: Final = [each["purl"] for each in BILL["components"]]
LOCKS: Final = sorted((ROOT / "flushtracker/jvm").glob("*.xml"))
PACKAGES: Final = {purl.removeprefix("pkg:pypi/").split("@")[0] for purl in PURLS if purl.startswith("pkg:pypi/")}


def test_the_bill_is_the_same_each_time_and_names_each_part_once() -> None:
    assert bill_of_materials(ROOT, 1_700_000_000) == BILL
    assert len(PURLS) == len(set(PURLS)) == len({each["bom-ref"] for each in BILL["components"]})
    assert BILL["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_the_bill_has_the_form_of_cyclonedx() -> None:
    """By the schema of its version, which forbids keys that it does not know; a wrong bill fails."""
    validator = _schema()
    assert list(validator.iter_errors(json.loads(json.dumps(BILL)))) == []
    wrong = [{**BILL["components"][0], "hashes": [{"alg": "SHA-256", "content": "0"}]}, {"name": "no type"}]
    assert len(list(validator.iter_errors({**BILL, "components": wrong}))) == 2


def _schema() -> Draft7Validator:
    folder = files("cyclonedx.schema") / "_res"
    names = ("bom-1.6", "spdx", "jsf-0.82")
    bom, *others = (json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text()) for name in names)
    registry: Registry[Any] = Registry().with_resources(
        (other["$id"], Resource.from_contents(other)) for other in others
    )
    return Draft7Validator(bom, registry=registry)


@pytest.mark.parametrize("extra", user_extras())
def test_the_bill_has_all_that_an_extra_installs(extra: str) -> None:
    """From the metadata of what is installed here, so also what nothing in this checkout names."""
    assert package_closure([extra], f"{sys.version_info.major}.{sys.version_info.minor}") - PACKAGES == set()


def test_each_jar_has_its_sum_in_the_bill() -> None:
    sums = {name: digest for lock in LOCKS for name, digest in read_sums(lock).items()}
    jars = [each for each in BILL["components"] if each["purl"].startswith("pkg:maven/")]
    assert len(jars) > 100
    for each in jars:
        assert each["hashes"] == [{"alg": "SHA-256", "content": sums[f"{each['name']}-{each['version']}.jar"]}]
