"""The hooks of ``mkdocs.yml``: the pages outside ``docs``, the reference of the public names, and links to other files.

A page is the same file in the repository and on the site, so its links lead to files of the repository. On the site, a
link to a page leads to that page, one to another file to a copy below ``files``, and one to a folder is only text.
Lists are indented as Python-Markdown needs it.
"""

import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import flushtracker

ROOT: Final = Path(__file__).parents[2]
_ELSEWHERE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "tests/README.md": "tests.md",
    "tests/mutants.md": "mutants.md",
}
"""The pages outside ``docs``, with their places on the site."""
_LINK: Final = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) +")
_REFERENCE: Final = "reference.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions, and let anchors be those of GitHub."""
    (decisions,) = (entry["Decisions"] for entry in config.nav or [] if "Decisions" in entry)
    decisions += sorted(f"decisions/{path.name}" for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs``, the reference, and all files that a page links to."""
    for source, place in _ELSEWHERE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    files.append(File.generated(config, _REFERENCE, content=_reference()))
    for file in list(files.documentation_pages()):
        for target in _linked_files(_repository_path(file.src_uri), file.content_string):
            if files.get_file_from_path(_place(target)) is None:
                files.append(File.generated(config, _place(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links to files of the repository lead to places on the site."""
    source, here = _repository_path(page.file.src_uri), posixpath.dirname(page.file.src_uri)

    def on_site(link: re.Match[str]) -> str:
        target = _resolved(source, link[2])
        if (ROOT / target).is_dir():
            return link[1][1:-1]
        return f"{link[1]}({posixpath.relpath(_place(target), here or '.')}{link[3] or ''})"

    return _LINK.sub(on_site, _indented(markdown))


def _indented(markdown: str) -> str:
    r"""What belongs to an item of a list, indented by four spaces.

    >>> _indented("1. one\n\n   its text\n\n- two\n  - below it\n\nafter\n")
    '1. one\n\n    its text\n\n- two\n    - below it\n\nafter\n'
    """
    lines, offset, is_code = [], 0, False
    for line in markdown.split("\n"):
        if not offset and line.startswith("```"):
            is_code = not is_code
        marker = None if is_code else _ITEM.match(line)
        if marker:
            offset = marker.end()
        elif offset and line.startswith(" " * offset):
            lines.append("    " + line[offset:])
            continue
        elif line:
            is_code ^= bool(offset) and line.startswith("```")
            offset = 0
        lines.append(line)
    return "\n".join(lines)


def _linked_files(source: str, markdown: str) -> Iterator[str]:
    for link in _LINK.finditer(markdown):
        target = _resolved(source, link[2])
        if (ROOT / target).is_file() and not target.endswith(".md"):
            yield target


def _repository_path(place: str) -> str:
    return next((source for source, other in _ELSEWHERE.items() if other == place), f"docs/{place}")


def _resolved(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _place(target: str) -> str:
    """
    >>> _place("README.md"), _place("docs/images/a.svg"), _place("conf/flushtracker.yaml")
    ('index.md', 'images/a.svg', 'files/conf/flushtracker.yaml')
    """
    if target in _ELSEWHERE:
        return _ELSEWHERE[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}"


def _reference() -> str:
    """A section for each module that has public names."""
    modules = {name: getattr(flushtracker, name).__module__ for name in flushtracker.__all__}
    lines = ["# Python reference", "", "The public names of `flushtracker`, each imported from there.", ""]
    for module, names in groupby(sorted(modules, key=lambda name: (modules[name], name)), key=modules.__getitem__):
        lines += [f"## {module.removeprefix('flushtracker.')}", ""]
        for name in names:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)
