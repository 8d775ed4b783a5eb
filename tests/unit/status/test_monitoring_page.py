"""The page without a browser: one file, no outside, no HTML from data. `make verify` runs it in a real browser."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Final

from flushtracker.status.http.status_app import PAGE, PAGE_POLICY

TEXT: Final = PAGE.decode()
SCRIPT: Final = re.findall(r"<script>(.*?)</script>", TEXT, re.DOTALL)[0]
STYLE: Final = re.findall(r"<style>(.*?)</style>", TEXT, re.DOTALL)[0]


class Tags(HTMLParser):
    """The elements of the page, and which of them are open at its end."""

    EMPTY: Final = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(TEXT)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


TAGS: Final = Tags()


def test_nothing_is_fetched_from_elsewhere() -> None:
    """The page works where only this port can be reached. Links lead to the program's own paths."""
    addresses = [value for _, attributes in TAGS.found for name in ("href", "src") if (value := attributes.get(name))]
    sections = {"runbook/flushtrackershapesrefused", "runbook/flushtrackershapeevicted"}
    assert set(addresses) == {"data:,", "metrics", "status.json", "healthz", "readyz", *sections}
    assert set(re.findall(r"https?://[^\"'\s]*", TEXT)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"url\(|@import|import\(", TEXT) == []
    assert re.findall(r"fetch\(([^,)]*)", SCRIPT) == ['"page.json"']


def test_names_reach_the_page_as_text_only() -> None:
    """A shape's id is written by its owner, and could be HTML."""
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|eval\(|Function\(", SCRIPT) == []
    assert not any(name.startswith("on") for _, attributes in TAGS.found for name in attributes)
    assert not any("style" in attributes for _, attributes in TAGS.found)


def test_policy_allows_exactly_this_script_and_this_style() -> None:
    for kind, content in (("script", SCRIPT), ("style", STYLE)):
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in PAGE_POLICY
    assert "default-src 'none'" in PAGE_POLICY
    assert "connect-src 'self'" in PAGE_POLICY
