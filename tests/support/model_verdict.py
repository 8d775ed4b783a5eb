"""When the models were last found right: what was checked, as one hash that is kept beside them.

A search is exhaustive, so it finds nothing new until something changes that it is about: a model or its bounds, the
checker, or the code for which an action stands, which its comment names (``tracking.flush_tracker``). Then whoever
changed it looks at the model, and ``make model`` searches again.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent.parent
_MODELS: Final = _ROOT / "docs" / "model"
_CHECKERS: Final = ("model.py", "support/model_steps.py", "support/log_rules.py")
_NAMED: Final = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+")
KEPT: Final = _MODELS / "found_right.sha256"


def checked_files() -> list[Path]:
    """Every file whose change may change what a search finds, or what it means."""
    models = [*_MODELS.glob("*.tla"), *_MODELS.glob("*.cfg")]
    return sorted({*models, *(_ROOT / "tests" / name for name in _CHECKERS), *_named_modules()})


def _named_modules() -> Iterator[Path]:
    for model in _MODELS.glob("*.tla"):
        for name in _NAMED.findall(model.read_text()):
            module = _ROOT / "flushtracker" / f"{name.replace('.', '/')}.py"
            if module.exists():
                yield module


def fingerprint() -> str:
    """One hash over all of them."""
    whole = sha256()
    for path in checked_files():
        whole.update(f"{path.relative_to(_ROOT)} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def is_kept() -> bool:
    """Whether all was found right as it is now."""
    return KEPT.exists() and KEPT.read_text().strip() == fingerprint()


def keep() -> None:
    KEPT.write_text(fingerprint() + "\n")
