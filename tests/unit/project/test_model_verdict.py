"""``make model --if-changed``: what a search is about, and that any change of it asks for another one."""

from pathlib import Path

import pytest

from tests.support import model_verdict


def test_models_checkers_and_the_code_that_an_action_names_are_checked() -> None:
    names = {path.name for path in model_verdict.checked_files()}
    assert {"FlushTracker.tla", "Fences.cfg", "model.py", "log_rules.py"} <= names
    assert {"flush_tracker.py", "shape_group.py", "outbox.py", "publish_fence.py"} <= names


def test_any_change_of_what_is_checked_asks_for_a_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_verdict, "KEPT", tmp_path / "kept")
    assert not model_verdict.is_kept()
    model_verdict.keep()
    assert model_verdict.is_kept()
    read = Path.read_bytes
    for changed in model_verdict.checked_files():
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", lambda path, it=changed: read(path) + b"\n" * (path == it))
            assert not model_verdict.is_kept(), changed
    assert model_verdict.is_kept()
