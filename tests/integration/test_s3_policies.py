"""Each program's work on its tables with the privileges that ``docs/security.md`` has for it, and with one missing.

The server enforces its bucket's policy. What Spark does with a checkpoint is not tried here.
"""

import hashlib
import hmac
import json
import re
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.cut_log import CutLog
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, open_shape_log, row_files
from flushtracker.shape_log.table.reader import read_shape_log
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.object_store import store_config, store_options
from tests.support.s3_server import S3Server, running_s3
from tests.support.sample_registry import shape_entry, table_entry
from tests.support.seeds import in_turn
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
_BUCKET: Final = "arn:aws:s3:::bucket"
_ON_BUCKET: Final = {"s3:ListBucket"}


def documented_actions(kind: str) -> list[str]:
    """The actions that *read*, *append* or *write* stands for."""
    found = re.search(rf"^- \*{kind}\*: (?P<actions>.*)$", _PAGE, re.MULTILINE)
    assert found is not None
    actions = re.findall(r"`(s3:\w+)`", found["actions"])
    for other in re.findall(r"\*(\w+)\*", found["actions"]):
        actions += documented_actions(other)
    return sorted(actions)


def documented_kinds(program: str) -> dict[str, str]:
    """By folder, such as ``acks``, which of them the program needs there."""
    head = re.search(r"^\| program or job \|(?P<cells>.*)\|$", _PAGE, re.MULTILINE)
    row = re.search(rf"^\| `{program}` \|(?P<cells>.*)\|$", _PAGE[head.end() :] if head else "", re.MULTILINE)
    assert head is not None
    assert row is not None
    cells = ([cell.strip(" `*") for cell in found["cells"].split("|")] for found in (head, row))
    return {name: kind for name, kind in zip(*cells, strict=True) if kind}


def statements(user: str, folders: Mapping[str, Iterable[str]]) -> list[Mapping[str, object]]:
    """Statements that allow ``user`` the actions by folder, and nothing else."""
    principal, found = {"AWS": [user]}, list[Mapping[str, object]]()
    for folder, actions in folders.items():
        on_objects = sorted({*actions} - _ON_BUCKET)
        if on_objects:
            resource = f"{_BUCKET}/{folder}/*"
            found.append({"Effect": "Allow", "Principal": principal, "Action": on_objects, "Resource": resource})
    if any(_ON_BUCKET & {*actions} for actions in folders.values()):
        found.append({"Effect": "Allow", "Principal": principal, "Action": [*_ON_BUCKET], "Resource": _BUCKET})
    return found


def put_policy(port: int, policy: Sequence[Mapping[str, object]]) -> None:
    """Replace the policy of the bucket of the server at ``port``."""
    body = json.dumps({"Version": "2012-10-17", "Statement": policy}).encode()
    s3, now = store_config(port), datetime.now(timezone.utc)
    headers = {
        "host": f"127.0.0.1:{port}",
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    signed = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join(["PUT", "/bucket", "policy=", *lines, "", signed, headers["x-amz-content-sha256"]])
    scope = f"{now:%Y%m%d}/{s3.region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])
    key = f"AWS4{s3.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={s3.access_key_id}/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    url = f"http://127.0.0.1:{port}/bucket?policy="
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")).close()


_NOW: Final = datetime.now(timezone.utc)
_USER: Final = "program"
_DAY_S: Final = 86_400

_Options: TypeAlias = dict[str, str]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """With all tables, which have a row each, and a user whom the policy decides for."""
    with running_s3() as server:
        server.accept(_USER, _USER, "user")
        options = store_options(server.port)
        _track(options, 1)
        _write(server, options, 1)
        yield server


def _options(s3: S3Server) -> _Options:
    return store_options(s3.port) | {"AWS_ACCESS_KEY_ID": _USER, "AWS_SECRET_ACCESS_KEY": _USER, "max_retries": "0"}


def _uri(table: str) -> str:
    return f"s3://bucket/{table}"


def _capture(_: S3Server, options: _Options, __: int) -> None:
    assert AckReader(_uri("acks"), options).last_ack(SOURCE) is not None


def _track(options: _Options, number: int) -> None:
    letters = DeadLetterTable(_uri("dead_letters"), options)
    letters.require_usable()
    acks = AckTable(_uri("acks"), options)
    acks.fence_others()
    assert acks.append(AckRow(SOURCE, number, number, number, 0, None, None, _NOW)) == 1
    acks._owned.compact()
    row = {"batch_id": number, "place": "p", "reason": "r", "value": "v", "written_at": _NOW}
    letters.append([row], "query", number)


def _write(s3: S3Server, options: _Options, number: int) -> None:
    """With a merge and a vacuum, which has something to delete."""
    table = create_shape_log(_uri("log"), options)
    registry = RegistryTable(_uri("log_shapes"), options, create=True)
    registry.append([entry.to_json() for entry in (shape_entry(), table_entry())], _NOW)
    claim, files = LogClaim(table), row_files(table, options)
    claim.take()
    for batch_id, tx in enumerate((10 * number, 10 * number + 5)):
        rows = arrow([item((tx, 0), "insert", f"k{tx}", {"id": f"k{tx}"}), commit(tx)])
        claim.append(list(files.write([rows])), claim.version_of(batch_id))
    CutLog(_uri("log"), registry, options).note({SOURCE: number})
    left = s3.folder / "log" / f"part-left-{number}.parquet"
    left.write_bytes(b"rows")
    s3.age(f"log/{left.name}", _DAY_S)
    keeper = ShapeLogUpkeep(_uri("log"), settings=MergeSettings(merge_files=1), storage_options=options)
    keeper._is_vacuum_due = True
    assert keeper.run(_NOW).merges
    assert not left.exists()
    if (s3.folder / "acks").exists():
        _capture(s3, options, number)


def _snapshot(_: S3Server, options: _Options, number: int) -> None:
    assert RegistryTable(_uri("log_shapes"), options).entries().entries
    table = open_shape_log(_uri("log"), options)
    files = LogFiles(table, options)
    rows = arrow([item((0, 1), "insert", "k", {"id": "k"})])
    written = WrittenFile(files.write(rows, None, is_change=True))
    snapshot = ShapeSnapshot(number, MvccSnapshot(1, 1), 0, 1)
    end = files.write_ends({(SOURCE, f"s{number}"): snapshot}, _NOW)
    files.append_snapshot([written, end], {(SOURCE, f"s{number}"): snapshot})


def _serve(_: S3Server, options: _Options, __: int) -> None:
    assert RegistryTable(_uri("log_shapes"), options).entries().entries
    assert table_rows(open_shape_log(_uri("log"), options), ["tx_offset"]).num_rows
    assert read_shape_log(_uri("log"), "users", storage_options=options).rows.num_rows


_PROGRAMS: Final[dict[str, Callable[[S3Server, _Options, int], None]]] = {
    "capture": _capture,
    "track": lambda _, options, number: _track(options, number),
    "write": _write,
    "snapshot": _snapshot,
    "serve": _serve,
}
_FAILED_UPLOADS: Final = "s3:AbortMultipartUpload"
_numbers = iter(range(2, 1000))


def _allowed(program: str) -> dict[str, list[str]]:
    """By folder, without checkpoints."""
    kinds = documented_kinds(program)
    return {folder: documented_actions(kind) for folder, kind in kinds.items() if folder != "checkpoint"}


@pytest.mark.parametrize("program", _PROGRAMS)
def test_program_works_with_what_the_documentation_gives_it(s3: S3Server, program: str) -> None:
    """And with nothing on other folders."""
    put_policy(s3.port, statements(_USER, _allowed(program)))
    _PROGRAMS[program](s3, _options(s3), next(_numbers))


@pytest.mark.parametrize("program", in_turn([*_PROGRAMS], 2))
def test_program_needs_each_action(s3: S3Server, program: str) -> None:
    """Without one of them it ends with an error; but for those that only failed uploads need."""
    allowed = _allowed(program)
    missing = sorted({action for actions in allowed.values() for action in actions} - {_FAILED_UPLOADS})
    for action in missing:
        without = {folder: [each for each in actions if each != action] for folder, actions in allowed.items()}
        put_policy(s3.port, statements(_USER, without))
        with pytest.raises((SinkError, OSError, AssertionError)):
            _PROGRAMS[program](s3, _options(s3), next(_numbers))
