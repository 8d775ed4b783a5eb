"""Stories of schema changes, played with capture, a server and a broker.

Each story has a table and a shape of its own. All of them are played in one database, once while capture runs and once
while it is down, and then judged by the same rule: fold the shape's items and compare them with the table.
"""

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig, shape
from tests.support.new_server import running_server
from tests.support.shape_outcome import Outcome, outcome

PLAIN: Final = "CREATE TABLE {t} (id int PRIMARY KEY, v text, w int)"
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True)
class Story:
    """What happens to a table ``{t}``; ``reason``: a pattern of why its shape must end, ``None`` if it must survive."""

    name: str
    changes: tuple[str, ...]
    reason: str | None
    create: tuple[str, ...] = (PLAIN,)
    first: str = "INSERT INTO {t} (id, v) VALUES (1, 'a'), (2, 'b')"
    columns: tuple[str, ...] | None = None
    where: str | None = None
    key: tuple[str, ...] | None = None

    def shape(self, table: str) -> dict[str, Any]:
        """Its shape, as the shapes file defines it."""
        options = {"columns": self.columns, "where": self.where, "primary_key": self.key}
        given = {
            name: list(each) if isinstance(each, tuple) else each for name, each in options.items() if each is not None
        }
        return shape(table, f"public.{table}", **given)

    def has_happened(self, found: Outcome) -> bool:
        """Whether nothing more is to come: a shape that must end may be right for a moment before."""
        return found.holds if self.reason is None else found.ended is not None

    def check(self, found: Outcome) -> None:
        """Assert that the shape survived and is right, or ended for the reason."""
        if self.reason is None:
            assert found.ended is None, found.ended
            assert found.fold == found.query
        else:
            assert found.ended is not None, f"fold {found.fold}, query {found.query}"
            assert re.search(self.reason, found.ended)


def play(
    stories: Sequence[Story], broker: Broker, folder: Path, *, down: bool, binaries: Path | None = None
) -> dict[str, Outcome]:
    """Play the stories on a server of their own; returns each one's outcome after the moment is quiet."""
    with running_server(binaries) as server:
        rig = CaptureRig(server, broker.bootstrap_servers, folder, lambda topic: f"{topic}-{uuid.uuid4().hex[:12]}")
        rig.create()
        try:
            return _play(rig, stories, down=down)
        finally:
            rig.close()


def _play(rig: CaptureRig, stories: Sequence[Story], *, down: bool) -> dict[str, Outcome]:
    tables = {story.name: f"t{number}" for number, story in enumerate(stories)}
    rig.server.execute("CREATE SCHEMA elsewhere")
    for story in stories:
        rig.server.execute(*(statement.format(t=tables[story.name]) for statement in story.create))
    rig.define(*(story.shape(tables[story.name]) for story in stories))
    capture = rig.start()
    rig.wait(lambda: len(rig.registry()) == len(stories), "all shapes")
    rig.wait_for_commits(rig.commit_lsn(*(story.first.format(t=tables[story.name]) for story in stories)))
    if down:
        capture.stop()
    statements = [change.format(t=tables[story.name]) for story in stories for change in story.changes]
    lsn = rig.commit_lsn(*statements)
    if down:
        capture = rig.start()
    rig.wait_for_commits(lsn)
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        found = {story.name: outcome(rig, tables[story.name], story.columns, where=story.where) for story in stories}
        waiting = [story for story in stories if not story.has_happened(found[story.name])]
        if not waiting or time.monotonic() > deadline:
            break
        # All are judged at one moment, but only these are looked at until then.
        while waiting and time.monotonic() < deadline:
            time.sleep(0.1)
            waiting = [
                story
                for story in waiting
                if not story.has_happened(outcome(rig, tables[story.name], story.columns, where=story.where))
            ]
    capture.stop()
    return found
