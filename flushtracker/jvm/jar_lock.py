"""A lock of jars: an Ivy file that names each with one exact version, for one or several configurations."""

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


def read_lock(ivy_xml: Path) -> Mapping[str, tuple[Jar, ...]]:
    """The jars of each configuration; a dependency without one is in all of them."""
    lock = ElementTree.parse(ivy_xml)  # noqa: S314  a file of this package
    return {
        conf.attrib["name"]: tuple(
            Jar(jar.attrib["org"], jar.attrib["name"], jar.attrib["rev"])
            for jar in lock.iter("dependency")
            if jar.attrib.get("conf") in {None, f"{conf.attrib['name']}->default"}
        )
        for conf in lock.iter("conf")
    }
