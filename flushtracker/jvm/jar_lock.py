"""A lock of jars: an Ivy file with an exact version of each, and a file beside it with their SHA-256.

The Ivy file has one or several configurations. ``make sums`` writes the other file, which ``sha256sum --check`` can
read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """The Maven coordinates of a jar."""

    group: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        """
        >>> Jar("io.delta", "delta-storage", "4.4.0").file_name
        'delta-storage-4.4.0.jar'
        """
        return f"{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def sums_file(ivy_xml: Path) -> Path:
    return ivy_xml.with_suffix(".sha256")


def read_sums(ivy_xml: Path) -> Mapping[str, str]:
    """The SHA-256 of each jar of all configurations, by file name."""
    lines = sums_file(ivy_xml).read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file that fits into memory."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_lock(ivy_xml: Path) -> Mapping[str, tuple[Jar, ...]]:
    """The jars of each configuration; a dependency without a configuration is in all of them."""
    lock = ElementTree.parse(ivy_xml)  # noqa: S314  a file of this package
    return {
        conf.attrib["name"]: tuple(
            Jar(jar.attrib["org"], jar.attrib["name"], jar.attrib["rev"])
            for jar in lock.iter("dependency")
            if jar.attrib.get("conf") in {None, f"{conf.attrib['name']}->default"}
        )
        for conf in lock.iter("conf")
    }
