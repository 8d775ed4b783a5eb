"""Pages and programs of Node, with the packages that the lock file of an example has."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from tests.support.processes import run_to_end

_NODE: Final = Path(__file__).parents[2] / "data" / "verify"
_DEADLINE_S: Final = 300.0


def node_folder(example: Path, *programs: Path) -> Path:
    """A new folder with the example's files, its packages, and these programs."""
    folder = _NODE / example.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("node_modules", "bundle.js"))
    for program in programs:
        shutil.copy(program, folder)
    npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "5")
    return folder


def npm(folder: Path, *arguments: str) -> None:
    done = run_to_end(["npm", *arguments], cwd=folder, timeout=_DEADLINE_S)
    assert done.returncode == 0, done.stderr


@contextmanager
def page_server(folder: Path) -> Iterator[str]:
    """Serves the files of a folder."""

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
