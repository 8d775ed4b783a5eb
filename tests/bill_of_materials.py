"""The bill of materials of a release, in CycloneDX 1.6: the exact versions that are tested.

It lists each Python package that any extra of a user installs, on any Python; pyspark of each Spark; and each jar of
all locks of ``flushtracker/jvm``. It does not list what a package includes, such as the jars in pyspark and the
libraries in wheels. Jars have their SHA-256. Packages have none, because each is another file on another platform.
"""

import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from flushtracker.jvm.jar_lock import Jar, read_lock, read_sums
from flushtracker.jvm.spark_version import LOCKED
from tests.pins import user_pins


def bill_of_materials(tree: Path, epoch: int) -> dict[str, Any]:
    """The bill of the checkout in ``tree``; ``epoch`` is the second at which its commit was made."""
    version = re.findall(r'__version__\b.*= "(.+)"', (tree / "flushtracker/__init__.py").read_text())[0]
    name = f"pkg:pypi/flushtracker@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name}#{epoch}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "component": _component("flushtracker", version, name, type="application"),
        },
        "components": sorted([*_packages(tree), *_jars(tree)], key=lambda each: str(each["bom-ref"])),
    }


def jar_lists(tree: Path) -> dict[str, list[Jar]]:
    """The jars of each set, such as ``broker``; for one that depends on Spark, of each version: ``s3-4.2``."""
    return {
        lock.stem.removesuffix("_jars") + ("" if conf == "default" else f"-{conf}"): list(jars)
        for lock in _locks(tree)
        for conf, jars in read_lock(lock).items()
    }


def _locks(tree: Path) -> list[Path]:
    return sorted((tree / "flushtracker/jvm").glob("*_jars.xml"))


def _packages(tree: Path) -> Iterator[dict[str, Any]]:
    pins = {(pin.name, pin.version) for pin in user_pins((tree / "constraints.txt").read_text())}
    for name, version in pins | {("pyspark", version) for version in LOCKED.values()}:
        yield _component(name, version, f"pkg:pypi/{name}@{version}")


def _jars(tree: Path) -> Iterator[dict[str, Any]]:
    sums = {name: digest for lock in _locks(tree) for name, digest in read_sums(lock).items()}
    for jar in {jar for jars in jar_lists(tree).values() for jar in jars}:
        purl = f"pkg:maven/{jar.group}/{jar.name}@{jar.version}"
        hashes = [{"alg": "SHA-256", "content": sums[jar.file_name]}]
        yield {**_component(jar.name, jar.version, purl, group=jar.group), "hashes": hashes}


def _component(name: str, version: str, purl: str, **more: str) -> dict[str, Any]:
    return {"type": "library", **more, "bom-ref": purl, "name": name, "version": version, "purl": purl}
