"""``docs/schemas`` of the programs' documents and the tables of ``docs/status.md``, generated from their structs.

``python -m tests.status_schemas`` writes the files; a test compares them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, get_type_hints

from msgspec.json import schema

from flushtracker.operate.status.status_output import StatusOutput
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.document import VERSION, Document, StatusObject, described
from flushtracker.status.http.metrics import metric_families
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus
from tests.support.random_status import (
    random_capture,
    random_job,
    random_serve,
    random_sink,
    random_snapshot,
    random_write,
)

DOCS: Final = Path(__file__).parents[1] / "docs"
DOCUMENTS: Final[Mapping[str, tuple[type[Document], str]]] = {
    "job": (JobStatus, "the tracking job"),
    "write": (WriteStatus, "the writers' job"),
    "snapshot": (SnapshotStatus, "the snapshots' job"),
    "serve": (ServeStatus, "the HTTP server"),
    "capture": (CaptureStatus, "capture"),
    "sink": (SinkStatus, "the feeder of Kafka sinks"),
}
"""Kind and name of each document, by the file of its schema."""
_PROGRAMS: Final[Mapping[str, Callable[[Random], ProgramStatus]]] = {
    "track": random_job,
    "write": random_write,
    "snapshot": random_snapshot,
    "serve": random_serve,
    "capture": random_capture,
    "sink": random_sink,
}
_GROUPS: Final[Mapping[str, Collection[str]]] = {
    "Of all programs:": _PROGRAMS,
    "Of `track` and `write`:": ("track", "write"),
    "Of `snapshot`, and of `write` with `snapshot: auto`:": ("snapshot", "write"),
    **{f"Of `{name}`:": (name,) for name in ("track", "write", "serve", "capture", "sink")},
}
"""The tables of metrics by the line before them: the programs that have all of its metrics, without those above."""
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_SEEDS: Final = 30
"""So many random documents have a sample of each metric."""
_LSN: Final = {"type": "string", "pattern": "^(0|[1-9A-F][0-9A-F]{0,7})/(0|[1-9A-F][0-9A-F]{0,7})$"}


def files() -> Iterator[tuple[Path, str]]:
    """Each generated file with its text."""
    for name, (kind, title) in DOCUMENTS.items():
        whole = json.dumps(_schema(kind, title), indent=2, ensure_ascii=False)
        yield DOCS / "schemas" / f"status_{name}.json", f"{whole}\n"
    whole = json.dumps(_command_schema(), indent=2, ensure_ascii=False)
    yield DOCS / "schemas" / "status_command.json", f"{whole}\n"
    yield DOCS / "status.md", _page((DOCS / "status.md").read_text())


def _page(text: str) -> str:
    for kind, title in DOCUMENTS.values():
        rows = [("version", "1"), ("program", f"`{kind.__struct_config__.tag}`"), *_fields(kind)]
        text = _with_table(text, f"### Of {title}", "field", rows)
    left = {name: _metrics(make) for name, make in _PROGRAMS.items()}
    for line, programs in _GROUPS.items():
        first, *others = (left[name] for name in programs)
        rows = [(name, metric) for name, metric in first.items() if all(name in other for other in others)]
        for name, _ in rows:
            for program in programs:
                del left[program][name]
        text = _with_table(text, line, "metric", rows)
    return text


def _with_table(page: str, line: str, what: str, rows: Iterable[tuple[str, str]]) -> str:
    """The page with these rows in the table below a line."""
    before, after = page.split(f"\n{line}\n\n")
    table = "".join(f"\n| `{name}` | {text} |" for name, text in rows)
    _, end, rest = after.partition("\n\n")
    return f"{before}\n{line}\n\n| {what} | meaning |\n| --- | --- |{table}{end or chr(10)}{rest}"


def _fields(kind: type[StatusObject], before: str = "") -> Iterator[tuple[str, str]]:
    for field in described(kind):
        yield f"{before}{field.key}", field.text
        if field.inner is not None and not issubclass(field.inner, Document):
            yield from _fields(field.inner, f"{before}{field.key}.")


def _metrics(make: Callable[[Random], ProgramStatus]) -> dict[str, str]:
    """The text of each metric by its name, with its labels."""
    found: dict[str, tuple[str, dict[str, None]]] = {}
    for seed in range(_SEEDS):
        for family in metric_families(make(Random(seed)), 0):  # noqa: S311  reproducible
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = found.setdefault(name, (family.documentation, {}))[1]
            labels.update(dict.fromkeys(label for sample in family.samples for label in sample.labels))
    return {
        # Not the first letter of WAL.
        f"{name}{{{', '.join(labels)}}}" if labels else name: text[:-1]
        if text[1].isupper()
        else f"{text[0].lower()}{text[1:-1]}"
        for name, (text, labels) in found.items()
    }


def _schema(kind: type[Document], title: str) -> dict[str, Any]:
    head = {
        "$schema": _DRAFT,
        "title": f"The status of {title}, version {VERSION}",
        "description": f"What /status.json of flushtracker {kind.__struct_config__.tag} answers. "
        "Readers ignore unknown keys. docs/status.md explains it.",
    }
    return {**head, **_objects(kind)}


def _command_schema() -> dict[str, Any]:
    """The schema of ``flushtracker status --json``; the programs' documents in it have schemas of their own."""
    head = {
        "$schema": _DRAFT,
        "title": "Output of flushtracker status --json",
        "description": "One object on one line; with --watch, one line for each look. Times are milliseconds since "
        "1970, LSNs are PostgreSQL's texts. Later releases may add keys.",
    }
    found = _objects(StatusOutput)
    elsewhere = {kind.__name__: f"status_{name}.json" for name, (kind, _) in DOCUMENTS.items()}
    elsewhere["SlotStatus"] = "status_capture.json#/$defs/SlotStatus"
    ours = {each.__name__ for each in _kinds(StatusOutput) if not each.__module__.endswith("_status")}
    own = json.dumps({name: each for name, each in found["$defs"].items() if name in ours})
    for name, reference in elsewhere.items():
        own = own.replace(f'"#/$defs/{name}"', f'"{reference}"')
    return {**head, "$ref": found["$ref"], "$defs": json.loads(own)}


def _objects(kind: type[StatusObject]) -> dict[str, Any]:
    found = schema(kind, schema_hook=lambda _: dict(_LSN))
    for each in _kinds(kind):
        of_object = found["$defs"][each.__name__]
        properties = {"version": {"const": VERSION}, **of_object["properties"]}
        if not issubclass(each, Document | StatusOutput):
            del properties["version"]
        for field in described(each):
            if field.key not in properties:  # It is a described property.
                properties[field.key] = schema(
                    get_type_hints(getattr(each, field.name).fget, include_extras=True)["return"]
                )
            properties[field.key]["description"] = _sentence(field.text)
            properties[field.key].pop("default", None)
        of_object |= {"properties": properties, "required": [*properties]}
    return found


def _kinds(kind: type[StatusObject]) -> Iterator[type[StatusObject]]:
    """All kinds of objects in one of this kind."""
    yield kind
    for field in described(kind):
        if field.inner is not None:
            yield from _kinds(field.inner)


def _sentence(text: str) -> str:
    """Without Markdown."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
    return f"{plain[0].upper()}{plain[1:]}."


def main() -> None:
    """Write the files."""
    for path, text in files():
        path.write_text(text)


if __name__ == "__main__":
    main()
