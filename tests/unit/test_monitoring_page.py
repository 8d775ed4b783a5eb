"""The page without a browser: one file, no outside, no HTML from data. `make verify` runs it in a real browser."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Final

from flushtracker.monitoring.status_app import PAGE, PAGE_POLICY

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
IDS: Final = [identifier for _, attributes in TAGS.found if (identifier := attributes.get("id"))]


def test_elements_are_closed_and_ids_are_unique() -> None:
    assert TAGS.open == []
    assert len(set(IDS)) == len(IDS)


def test_nothing_is_fetched_from_elsewhere() -> None:
    """The page works where only this port can be reached. Links lead to the program's own paths."""
    addresses = [value for _, attributes in TAGS.found for name in ("href", "src") if (value := attributes.get(name))]
    sections = {"runbook/flushtrackershapesrefused", "runbook/flushtrackershapeevicted"}
    assert set(addresses) == {"data:,", "metrics", "status.json", "healthz", "readyz", *sections}
    assert set(re.findall(r"https?://[^\"'\s]*", TEXT)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"url\(|@import|import\(", TEXT) == []
    assert re.findall(r"fetch\(([^,)]*)", SCRIPT) == ['"page.json"']


def test_every_id_that_the_script_uses_is_there() -> None:
    used = set(re.findall(r"\$\(\"([\w-]+)\"\)", SCRIPT)) | set(
        re.findall(r"(?:show|say|markAge)\(\"([\w-]+)\"", SCRIPT)
    )
    made = {f"{name}-lsn" for name in ("received", "published", "confirmed")}
    made |= {f"{name}-title" for name in re.findall(r"markAge\(\"([\w-]+)\"", SCRIPT)}
    assert len(used) > 40
    assert used | made <= set(IDS)


def test_every_number_on_the_page_is_set_by_the_script() -> None:
    """None is forgotten: it would stay empty."""
    shown = set(re.findall(r"<dd id=\"([\w-]+)\"", TEXT))
    made = {f"{name}-lsn" for name in ("received", "published", "confirmed")}
    assert shown == set(re.findall(r"show\(\"([\w-]+)\"", SCRIPT)) - {""} | made


def test_ids_that_tests_in_a_browser_read_are_there() -> None:
    """They are listed at the page's head."""
    listed = re.findall(r"<!--(.*?)-->", TEXT, re.DOTALL)[0]
    names = re.findall(r"^  ([a-z, -]+?)(?: \(|:|$|, source)", listed, re.MULTILINE)
    ids = {name.strip() for line in names for name in line.split(",")}
    assert {"ack-lsn", "last-seen-lsn", "holders", "silent", "chart"} <= ids <= set(IDS)


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


def test_page_has_a_dark_and_a_narrow_form() -> None:
    assert "prefers-color-scheme: dark" in STYLE
    assert "max-width: 40rem" in STYLE
    assert 'name="viewport" content="width=device-width' in TEXT


def test_colours_can_be_read_in_light_and_dark() -> None:
    """At least 4.5 : 1 against the card, as WCAG 2 asks for text; lines of the chart at least 3 : 1."""
    schemes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", block))
        for block in re.findall(r":root {(.*?)}", STYLE, re.DOTALL)
    ]
    assert len(schemes) == 2
    for colours in schemes:
        for name in ("text", "soft", "good", "wait", "bad"):
            assert contrast(colours[name], colours["card"]) >= 4.5, name
            assert contrast(colours[name], colours["back"]) >= 4.5, name
        assert contrast(colours["bad"], colours["bad-back"]) >= 4.5
        for name in ("written", "seen", "ack", "confirmed"):
            assert contrast(colours[name], colours["card"]) >= 3, name


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
