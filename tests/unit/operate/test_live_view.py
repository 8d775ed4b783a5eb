"""What ``flushtracker up --view`` and the demo show on a terminal."""

import sys
from typing import cast

import pytest

from flushtracker.operate.status.live_view import LiveView
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.slot_view import SlotView
from tests.support.slot_overviews import overview


class _Asked:
    def query(self) -> Overview:
        return overview()


def test_message_during_the_view_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be overwritten otherwise. The one before and the one after it are printed."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printed = list[str]()
    view = LiveView(printed.append)
    view.say("capture is ready")
    with view.shown(cast("SlotView", _Asked()), ()) as show:
        view.say("jobs exited with 137")
        show()
    view.say("stopping serve")
    assert printed == ["capture is ready", "stopping serve"]
    shown = capsys.readouterr().out
    assert shown.index("remedy: ") < shown.index("jobs exited with 137") < shown.index("\x1b[?1049l")
