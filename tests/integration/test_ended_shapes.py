"""A shape that has ended is named until its owner acts, and the remedy that is printed ends the complaint."""

import re
import shlex
from dataclasses import replace

from flushtracker.cli import main
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Limits, Verdict, judge
from tests.support.capture_rig import CaptureRig, RunningCapture, shape
from tests.support.sample_status import read_back
from tests.support.slot_overviews import overview


def verdict_on(capture: RunningCapture) -> Verdict:
    """What ``flushtracker status`` says with this capture's document."""
    status = read_back(capture.loop.status())
    return judge(replace(overview(), capture=CallResult(status.at_ms, status)), Limits())


def kinds(capture: RunningCapture) -> list[str]:
    return [each.kind for each in verdict_on(capture).findings if each.part == "capture"]


def command_in(verdict: Verdict) -> list[str]:
    """The words after ``flushtracker`` of the command in the remedy of a shape that has ended."""
    (remedy,) = (each.remedy for each in verdict.findings if each.kind == "shapes_ended")
    found = re.search(r"flushtracker (resync [^;]+);", remedy or "")
    assert found is not None, remedy
    return shlex.split(found[1])


def test_the_printed_remedy_begins_the_shape_again_and_ends_the_complaint(rig: CaptureRig) -> None:
    """The cause is removed first, as the remedy says. A restart of capture does not forget that the shape has ended."""
    rig.server.execute("CREATE TABLE other (id int PRIMARY KEY)")
    rig.define(shape("users"), shape("other", "public.other"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    assert kinds(capture) == []
    rig.execute_and_wait("ALTER TABLE users RENAME TO people", "INSERT INTO other VALUES (1)")
    rig.wait(lambda: kinds(capture) == ["shapes_ended"], "the status with the shape that has ended")
    capture.stop()
    capture = rig.start()
    rig.wait(lambda: kinds(capture) == ["shapes_ended"], "the status after a restart")
    verdict = verdict_on(capture)
    assert verdict.exit_code == 1
    assert "was renamed to public.people" in "".join(each.text for each in verdict.findings)
    rig.server.execute("ALTER TABLE people RENAME TO users")
    assert main([*command_in(verdict), "--config", str(rig.config_file), "--yes", "--no-wait"]) == 0
    rig.wait(lambda: rig.registry()["users"].removed_at is None, "its next incarnation")
    rig.wait(lambda: kinds(capture) == [], "the end of the complaint")
    assert verdict_on(capture).exit_code == 0
    before = len(rig.items("users"))
    rig.execute_and_wait("INSERT INTO users VALUES (2)")
    assert len(rig.items("users")) == before + 1
    capture.stop()


def test_a_shape_that_is_taken_out_of_the_file_is_no_longer_complained_about(rig: CaptureRig) -> None:
    rig.server.execute("CREATE TABLE other (id int PRIMARY KEY)")
    rig.define(shape("users"), shape("other", "public.other"))
    capture = rig.start()
    rig.execute_and_wait("INSERT INTO users VALUES (1)")
    rig.execute_and_wait("ALTER TABLE users RENAME TO people", "INSERT INTO other VALUES (1)")
    rig.wait(lambda: kinds(capture) == ["shapes_ended"], "the status with the shape that has ended")
    rig.define(shape("other", "public.other"))
    rig.wait(lambda: kinds(capture) == [], "the end of the complaint")
    capture.stop()
