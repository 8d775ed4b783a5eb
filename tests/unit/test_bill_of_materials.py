"""The bill of materials and the lists of jars of a release have everything that a user may get."""

import json
import re
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft7Validator
from packaging.utils import canonicalize_name
from referencing import Registry, Resource

from flushtracker.errors import ConfigError
from flushtracker.jvm import ivy_jars
from flushtracker.jvm import jars as jar_sets
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jar_lock import read_sums
from flushtracker.jvm.spark_version import LOCKED
from tests.bill_of_materials import bill_of_materials, jar_lists
from tests.pins import ROOT, user_extras
from tests.support.package_closure import package_closure

BILL: Final = bill_of_materials(ROOT, 1_700_000_000)
PURLS: Final = [each["purl"] for each in BILL["components"]]
LOCKS: Final = sorted((ROOT / "flushtracker/jvm").glob("*.xml"))
SETS: Final = [each for each in vars(jar_sets).values() if isinstance(each, JarSet)]
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


def test_the_bill_has_no_tool_of_the_tests() -> None:
    assert "py4j" in PACKAGES
    assert PACKAGES & {canonicalize_name(name) for name in ("pytest", "mypy", "hypothesis", "duckdb", "uv")} == set()


def test_the_bill_has_the_pyspark_of_each_spark() -> None:
    assert {purl for purl in PURLS if "/pyspark@" in purl} == {f"pkg:pypi/pyspark@{each}" for each in LOCKED.values()}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_bill_has_every_jar_of_every_lock(lock: Path) -> None:
    """Each dependency of the file, for whichever Spark it is."""
    found = re.findall(r'<dependency org="(.+?)" name="(.+?)" rev="(.+?)"', lock.read_text())
    assert len(found) == lock.read_text().count("<dependency ") > 0
    assert {f"pkg:maven/{group}/{name}@{version}" for group, name, version in found} - set(PURLS) == set()


@pytest.mark.parametrize("jars", SETS, ids=lambda jars: jars.owner)
def test_each_set_of_jars_has_a_lock_and_a_list(jars: JarSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each Spark that the set has jars for, the list is what a fetch gets."""
    assert jars.ivy_xml in LOCKS
    lists = [{f"{jars.folder}{jar.file_name}" for jar in listed} for listed in jar_lists(ROOT).values()]
    tried = 0
    for version in LOCKED.values():
        monkeypatch.setattr(ivy_jars, "installed_version", lambda version=version: version)
        with suppress(ConfigError):
            assert set(jars.names()) in lists
            tried += 1
    assert tried > 0


def test_each_jar_has_its_sum_in_the_bill() -> None:
    sums = {name: digest for lock in LOCKS for name, digest in read_sums(lock).items()}
    jars = [each for each in BILL["components"] if each["purl"].startswith("pkg:maven/")]
    assert len(jars) > 100
    for each in jars:
        assert each["hashes"] == [{"alg": "SHA-256", "content": sums[f"{each['name']}-{each['version']}.jar"]}]


def test_each_spark_has_lists_of_its_own() -> None:
    lists = {name: [str(jar) for jar in jars] for name, jars in jar_lists(ROOT).items()}
    assert len(SETS) == len(LOCKS) == len({name.split("-")[0] for name in lists})
    for spark, version in LOCKED.items():
        assert f"io.delta:delta-spark_{spark}_2.13:4.4.0" in lists[f"spark-{spark}"]
        assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}" in lists[f"spark-{spark}"]
        assert len(lists[f"spark-{spark}"]) == 11
    assert "org.apache.kafka:kafka_2.13:4.2.0" in lists["broker"]
    assert "org.apache.hadoop:hadoop-aws:3.4.1" in lists["s3-4.0"]


def test_a_jar_without_a_configuration_is_for_all(tmp_path: Path) -> None:
    """A lock of another form would give empty lists."""
    (tmp_path / "flushtracker/jvm").mkdir(parents=True)
    (tmp_path / "flushtracker/jvm/spark_jars.xml").write_text(
        '<m><configurations><conf name="9"/><conf name="8"/></configurations><dependencies>'
        '<dependency org="o" name="n" rev="1" conf="9->default"/><dependency org="o" name="all" rev="2"/>'
        "</dependencies></m>"
    )
    lists = {name: [str(jar) for jar in jars] for name, jars in jar_lists(tmp_path).items()}
    assert lists == {"spark-9": ["o:n:1", "o:all:2"], "spark-8": ["o:all:2"]}
