"""The folders of the tables: what keeps a table from being created there, and what upkeep leaves alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta import compaction
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.table_folder import TableFolder
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.log_table import create_shape_log, shape_log_folder
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.sample_registry import shape_entry

_DAY_S: Final = 24 * 3600
_NOW: Final = datetime.now(timezone.utc)
_FOREIGN: Final = ("backup.sql", "dump.parquet", "exports/part-00000-1.parquet", "report.csv")
CREATE: Final[Mapping[str, Callable[[str], object]]] = {
    "ack table": AckTable,
    "shape log": create_shape_log,
    "registry table": lambda uri: RegistryTable(uri, create=True),
}


def put(folder: Path, *names: str) -> None:
    """Write old files."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("somebody's")
        os.utime(path, (path.stat().st_mtime - _DAY_S,) * 2)


@pytest.mark.parametrize("kind", CREATE)
@pytest.mark.parametrize("spelling", ["{}", "file://{}", "relative"])
def test_table_is_not_created_in_a_folder_with_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, spelling: str
) -> None:
    """Somebody names the folder with the reports by mistake: the message names them, and nothing is written there."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "relative", *_FOREIGN)
    uri = spelling.format(tmp_path / "relative")
    with pytest.raises(SinkError) as caught:
        CREATE[kind](uri)
    found = "backup.sql, dump.parquet, exports and 1 more"
    assert str(caught.value) == (
        f"{kind} {uri} cannot be created: the folder already has {found}; name another storage"
    )
    found_after = sorted(path.name for path in (tmp_path / "relative").iterdir())
    assert found_after == ["backup.sql", "dump.parquet", "exports", "report.csv"]


@pytest.mark.parametrize("kind", CREATE)
def test_table_is_created_in_an_empty_folder(tmp_path: Path, kind: str) -> None:
    """Also on a new disk, or where a start has been killed; and files that arrive later keep nobody from opening it."""
    put(tmp_path, ".DS_Store")
    for name in ("lost+found", "_delta_log"):
        (tmp_path / name).mkdir()
    CREATE[kind](str(tmp_path))
    put(tmp_path, *_FOREIGN)
    CREATE[kind](str(tmp_path))
    assert DeltaTable(str(tmp_path)).version() == 0


def test_table_that_another_process_creates_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are no foreign ones, though there was no table at the first look."""
    names = TableFolder.names

    def create_before(folder: TableFolder) -> list[str]:
        monkeypatch.setattr(TableFolder, "names", names)
        other = AckTable(str(tmp_path / "acks"))
        other.fence_others()
        assert other.append(_row(1))
        return names(folder)

    monkeypatch.setattr(TableFolder, "names", create_before)
    assert AckTable(str(tmp_path / "acks")).last_ack("7301/1/shapes") == 1


_OBJECT_STORE: Final = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Lister(BaseHTTPRequestHandler):
    def do_GET(self):
        keys = ["acks/", "acks/report.csv", "acks/year=2026/"]
        found = "" if "_delta_log" in self.path else "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>1</Size></Contents>"
            for key in keys[:2]
        ) + f"<CommonPrefixes><Prefix>{keys[2]}</Prefix></CommonPrefixes>"
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = HTTPServer(("127.0.0.1", 0), Lister)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""A bucket that only lists. A process of its own: deltalake holds Python's lock while it waits for a listing."""


def test_table_is_not_created_beside_objects_of_others() -> None:
    """An object store has no folders: one listing says what is there, and the empty object ``acks/`` is nobody's."""
    with subprocess.Popen(
        [sys.executable, "-c", _OBJECT_STORE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as store:
        assert store.stdout is not None
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(store.stdout.readline())}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "test",
        }
        try:
            with pytest.raises(SinkError, match=r"ack table s3://b/acks cannot .* has report\.csv, year=2026; name"):
                AckTable("s3://b/acks", options)
        finally:
            store.kill()


def _row(ack_lsn: int) -> AckRow:
    return AckRow("7301/1/shapes", 3, ack_lsn, ack_lsn, 0, None, None, _NOW)


def test_files_of_others_in_an_ack_table_survive_its_upkeep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``report.csv`` and ``backup.sql`` were gone 105 acks later. The log names them once; our own old files go."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 10)
    folder = tmp_path / "acks"
    table = AckTable(str(folder))
    table.fence_others()
    put(folder, *_FOREIGN, "part-00000-left-behind-c000.snappy.parquet")
    for number in range(2 * compaction.COMPACT_EVERY + 5):
        assert table.append(_row(1 + number))
    assert [name for name in _FOREIGN if not (folder / name).exists()] == []
    assert not (folder / "part-00000-left-behind-c000.snappy.parquet").exists()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        "the folder of the ack table has files that are not the table's; they are kept, move them elsewhere "
        f"uri={folder} count=4 files=backup.sql, dump.parquet, exports/part-00000-1.parquet and 1 more"
    )


def test_files_of_others_in_a_shape_log_survive_its_upkeep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a killed writer has left goes: files of an append, or of a run, that no version names."""
    log = str(tmp_path / "log")
    create_shape_log(log)
    left = [f"run-{7:020}-{0:06}-ab.parquet", "part-ab.parquet"]
    put(tmp_path / "log", *_FOREIGN, *left)
    upkeep = ShapeLogUpkeep(log)
    assert [upkeep._vacuum(), upkeep._vacuum()] == [len(left), 0]
    assert [name for name in _FOREIGN if not (tmp_path / "log" / name).exists()] == []
    assert [name for name in left if (tmp_path / "log" / name).exists()] == []
    assert caplog.text.count("the folder of the shape log has files that are not the table's") == 1


def test_files_of_others_in_a_registry_table_survive_its_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third table that the deltalake package writes."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 1)
    table = RegistryTable(str(tmp_path / "shapes"), create=True)
    put(tmp_path / "shapes", *_FOREIGN, "part-left-behind.parquet")
    assert table.append([shape_entry("users").to_json()], _NOW) == 1
    assert [name for name in _FOREIGN if not (tmp_path / "shapes" / name).exists()] == []
    assert not (tmp_path / "shapes" / "part-left-behind.parquet").exists()


_KILLED: Final = """
import os, signal, sys
import pyarrow as pa
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.log_table import open_shape_log, row_files
from tests.support.shape_log_rows import arrow, item

def blocks():
    for number in range(10_000):
        yield arrow([item((number, 0), "insert", str(number), {"text": os.urandom(100_000).hex()})])
        if any("#" in name for name in os.listdir(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)

list(row_files(open_shape_log(sys.argv[1]), {}).write(blocks()))
"""


def test_file_that_a_kill_cut_short_is_deleted_later(tmp_path: Path) -> None:
    """It has no name that a listing shows, so it would stay for ever; one that is being written is left alone."""
    log = tmp_path / "log"
    folder = shape_log_folder(str(log))
    table = create_shape_log(str(log))
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(log)], check=False, cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    (cut,) = (path for path in log.iterdir() if path.is_file())
    assert folder.delete_old_files(table) == 0
    assert cut.exists()
    os.utime(cut, (1_700_000_000,) * 2)
    assert folder.delete_old_files(table) == 1
    assert [path.name for path in log.iterdir()] == ["_delta_log"]


def test_names_of_others_that_look_incomplete_stay(tmp_path: Path) -> None:
    """``export.parquet#old`` was deleted in the same call that had logged that it is kept."""
    folder = shape_log_folder(str(tmp_path / "log"))
    table = create_shape_log(str(tmp_path / "log"))
    kept = ["export.parquet#old", "report.parquet#1", "part-1.parquet#old", "part-2.parquet#3/file"]
    put(tmp_path / "log", *kept, "part-4.parquet#5")
    for path in (tmp_path / "log").iterdir():
        os.utime(path, (1_700_000_000,) * 2)
    folder.delete_old_files(table)
    assert [name for name in kept if not (tmp_path / "log" / name).exists()] == []
    assert not (tmp_path / "log" / "part-4.parquet#5").exists()


def test_file_that_is_completed_while_old_ones_are_deleted_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renamed between the listing and the look at its age, and upkeep failed."""
    folder = shape_log_folder(str(tmp_path / "log"))
    table = create_shape_log(str(tmp_path / "log"))
    incomplete = tmp_path / "log" / "part-4.parquet#5"
    incomplete.touch()
    listed = Path.iterdir

    def completed_after(path: Path) -> list[Path]:
        found = list(listed(path))
        incomplete.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "iterdir", completed_after)
    assert folder.delete_old_files(table) == 0
