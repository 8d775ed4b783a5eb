"""What an extra installs, with all that this needs, from the metadata of the packages that are installed here."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def package_closure(extras: Iterable[str], python: str) -> set[str]:
    """The names of all packages that flushtracker needs with these extras, on a Python such as ``3.10``.

    Of a package that is not installed here, because only another Python needs it, the requirements are unknown.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    seen: set[tuple[str, str]] = set()
    waiting = [("flushtracker", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for requirement in _requirements(name):
            if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra}):
                waiting += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in seen} - {"flushtracker"}


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        return []
