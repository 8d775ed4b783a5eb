"""The links between README and docs lead to files and headings that exist, and those of a package index to no file."""

import re
import runpy
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    """A file or folder of the repository, and in a page a heading."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_have_no_conflict_markers(page: Path) -> None:
    """A merge that was committed half resolved breaks no link."""
    assert re.findall(r"^(?:<{7}|>{7}).*", page.read_text(), re.MULTILINE) == []


def test_package_index_gets_no_relative_links() -> None:
    """They are absolute once there is a public repository; until then the files are named."""
    for_index = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["for_index"]
    readme = (
        "See [deploying.md](docs/deploying.md#jars), [Spark](https://spark.apache.org).\n\n![Page](docs/a.png)\n\nEnd"
    )
    assert for_index(readme, "") == "See deploying.md, [Spark](https://spark.apache.org).\n\nEnd"
    assert for_index(readme, "https://x/y").split("](")[1:] == [
        "https://x/y/blob/HEAD/docs/deploying.md#jars), [Spark",
        "https://spark.apache.org).\n\n![Page",
        "https://x/y/raw/HEAD/docs/a.png)\n\nEnd",
    ]
    assert re.findall(r"\]\((?!\w+://)", for_index((ROOT / "README.md").read_text(), "")) == []
