"""``make docs``: the site is complete, and loads nothing from elsewhere. Its links are checked by the build itself."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import flushtracker

_ROOT: Final = Path(__file__).parents[2]
_LOADED: Final = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)|<link[^>]* href="([^"]*)')
_ELSEWHERE: Final = re.compile(r"(?:https?:)?//")


def _build(site: Path, config: Path = _ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = _build(folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_each_page_is_on_the_site(site: Path) -> None:
    """Those of ``docs``, and those beside it."""
    pages = {path.relative_to(_ROOT / "docs").with_suffix(".html") for path in _ROOT.glob("docs/**/*.md")}
    readmes = {page for page in pages if page.name == "README.html"}
    expected = pages - readmes | {page.with_name("index.html") for page in readmes}
    others = {"index.html", "changelog.html", "contributing.html", "reporting.html", "reference.html"}
    assert {path.relative_to(site) for path in site.rglob("*.html")} >= expected | {Path(name) for name in others}


def test_reference_has_each_public_name(site: Path) -> None:
    found = set(re.findall(r'id="flushtracker\.([\w.]+)"', (site / "reference.html").read_text()))
    assert {name.rpartition(".")[2] for name in found} >= set(flushtracker.__all__)


def test_docstrings_are_shown_as_text(site: Path) -> None:
    """No role of reStructuredText is left in them, and doctests are code."""
    text = (site / "reference.html").read_text()
    assert not re.findall(r":(?:func|class|meth|attr|mod|data|exc):", text)
    assert "<blockquote>" not in text


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """No fonts, scripts, images or analytics of others."""
    loaded = {(path.name, a or b) for path in site.rglob("*.html") for a, b in _LOADED.findall(path.read_text())}
    assert len(loaded) > 100
    assert {(page, url) for page, url in loaded if _ELSEWHERE.match(url)} == set()


def test_links_out_of_the_pages_lead_to_copies(site: Path) -> None:
    """They are copies of the files that they name; there is no public repository to link to."""
    assert (site / "files/flushtracker/tracking/flush_tracker.py").read_bytes() == (
        _ROOT / "flushtracker/tracking/flush_tracker.py"
    ).read_bytes()
    assert 'href="files/flushtracker/tracking/flush_tracker.py"' in (site / "index.html").read_text()


@pytest.mark.parametrize("link", ["nowhere.md", "faq.md#nothing"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    """Also one to a heading that is not there."""
    docs = tmp_path / "docs"
    (docs / "decisions").mkdir(parents=True)
    (docs / "faq.md").write_text(f"# Questions\n\nSee [this]({link}).\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        "INHERIT: " + str(_ROOT / "mkdocs.yml") + "\nplugins: [search]\nhooks: []\nextra_css: []\nnav: [faq.md]\n"
    )
    built = _build(tmp_path / "site", config)
    assert built.returncode == 1
    assert link.partition("#")[0] in built.stderr + built.stdout
