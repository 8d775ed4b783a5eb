"""``flushtracker config``: prints what is in force for every program, and from where; secrets are not shown."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.config_keys import KEYS, json_schema
from flushtracker.config.file_kinds import read_one_file
from flushtracker.config.job_config import load_config
from flushtracker.config.one_file import Entry, Form, OneFile
from flushtracker.config.program_forms import FORMS
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.write_config import load_write_config
from flushtracker.kafka.kafka_config import load_kafka_config

_SECRET: Final = re.compile(r"password|passwd|secret|token|credential|jaas|sas\b|key(?!store|tab|word)", re.IGNORECASE)
_READERS: Final[Mapping[str, Callable[[Path], object]]] = {
    "track": load_config,
    "capture": load_capture_config,
    "write": load_write_config,
    "snapshot": load_snapshot_config,
    "serve": load_serve_config,
}


def run(arguments: argparse.Namespace) -> int:
    """Print the values, once every program has accepted what it would read."""
    if arguments.schema:
        sys.stdout.write(f"{json.dumps(json_schema(), indent=2)}\n")
        return 0
    file = read_one_file(arguments.config)
    for program in FORMS.keys() - file.off:
        load = load_kafka_config if program == "snapshot" and file.text("snapshot.into") == "kafka" else None
        (load or _READERS[program])(arguments.config)
    sys.stdout.write(f"{arguments.config}: {', '.join(file.programs)}\n")
    lines = list(dict.fromkeys(_lines(file)))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for label, value, source in lines:
        sys.stdout.write(f"{label:{widths[0]}}  {value:{widths[1]}}  {source}\n")
    return 0


def _lines(file: OneFile) -> Iterator[tuple[str, str, str]]:
    """Each key of the file with its value and where it is from; then what the programs derive from these."""
    for key in KEYS.values():
        if key.kind in {"options", "durations"}:
            form = file.connection() if key.path == "postgres" else file.options(key.path)
            yield from _entry_lines(file, form, is_filled=key.path in {"postgres", "snapshot.postgres"})
        elif (entry := file.entry(key.path)) is not None:
            yield from _entry_lines(file, {key.name: entry}, is_filled=True)
        elif key.name != "checkpoint":
            yield key.path, key.default_text.replace("`", ""), "default"
    labels = {key.path for key in KEYS.values()}
    for program, form_of in FORMS.items():
        if program not in file.off:
            derived = _leaves(form_of(file))
            form = {str(number): each for number, each in enumerate(derived) if _is_derived(each, labels)}
            yield from _entry_lines(file, form, is_filled=True)


def _is_derived(entry: Entry, labels: set[str]) -> bool:
    is_said = entry.label in labels and not entry.label.endswith(".checkpoint")
    return not is_said and entry.label != "status.urls" and not entry.source.startswith("line ")


def _leaves(form: Form) -> Iterator[Entry]:
    for each in form.values():
        if isinstance(each, Entry):
            yield each
        elif each is not None:
            yield from _leaves(each)


def _entry_lines(file: OneFile, form: Form, *, is_filled: bool) -> Iterator[tuple[str, str, str]]:
    """``is_filled``: whether the values of variables are shown, unless the name is that of a secret."""
    for entry in _leaves(form):
        shown = file.value(entry) if is_filled and not entry.is_list else entry.shown
        yield entry.label, "…" if _SECRET.search(entry.label) else shown, entry.source
