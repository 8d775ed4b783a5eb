"""A real Chromium without a window, and what a page shows in it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.support.waiting import wait_until

_SCREENSHOTS: Final = Path(__file__).parents[2] / "data" / "verify"
_DEADLINE_S: Final = 60.0


class Page:
    """A page in the browser."""

    def __init__(self, chrome: Chrome) -> None:
        self._chrome = chrome

    def open(self, url: str, *, width: int = 1280, height: int = 1100, is_dark: bool = False) -> None:
        """Open the page in a viewport of this size, for somebody who likes it light or dark."""
        # The page before may have lost its program, and asked it again.
        self._chrome.get("about:blank")
        self.errors()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        # The last page asks a program that has ended, and its complaints are not this one's.
        self._chrome.get("about:blank")
        self.errors()
        self._chrome.get(url)

    def wait_for_state(self, state: str) -> None:
        """Wait until ``data-state`` of the body is this."""
        wait_until(lambda: self.script("return document.body.dataset.state") == state, f"state {state}", _DEADLINE_S)

    def values(self) -> dict[str, str]:
        """Id → ``data-value`` of every number that the page shows."""
        found: dict[str, str] = self.script(
            "return Object.fromEntries([...document.querySelectorAll('[id][data-value]')]"
            ".map(each => [each.id, each.dataset.value]))"
        )
        return found

    def rows(self, table: str) -> list[dict[str, str]]:
        """The rows of a table, each as field → ``data-value``, with the shape."""
        found: list[dict[str, str]] = self.script(
            f"return [...document.querySelectorAll('#{table} tr[data-shape]')].map(row => ({{shape: row.dataset.shape,"
            "...Object.fromEntries([...row.querySelectorAll('td[data-field]')]"
            ".map(cell => [cell.dataset.field, cell.dataset.value]))}))"
        )
        return found

    def text(self, element_id: str) -> str:
        """What a reader sees of the element; nothing while it is hidden."""
        return self._chrome.find_element(By.ID, element_id).text

    def script(self, text: str) -> Any:
        """What this piece of JavaScript returns."""
        return self._chrome.execute_script(text)

    def errors(self) -> list[str]:
        """What the browser complained of since it opened the page, or the last call: scripts, requests, its policy."""
        entries = self._chrome.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def save(self, name: str) -> Path:
        """Save what is seen as ``data/verify/<name>.png``."""
        _SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = _SCREENSHOTS / f"{name}.png"
        assert self._chrome.save_screenshot(str(path))
        return path


@contextmanager
def browser() -> Iterator[Page]:
    """Start Chromium with an empty profile, and leave nothing of it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        # As root, which a container often is, Chromium starts only without its sandbox; /dev/shm may be tiny there.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            yield Page(chrome)
        finally:
            chrome.quit()
