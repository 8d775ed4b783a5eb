"""The app ids of an ack table's transactions: one for each source, and one for the fencing token.

deltalake returns the version of an app id that is known, but no list. So the list is read from the table's log, as
Delta's protocol describes it: the ``txn`` actions of the newest checkpoint and of the commits after it. Rows are not
read, because they may have been deleted.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from flushtracker.delta.fence import FENCING_APP_ID
from flushtracker.delta.storage import StoreFiles

_SUFFIX: Final = " (source)"
_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:.+\.)?(parquet|json)")


def app_id_of(source: str) -> str:
    """The app id of a source: its name, unless that could be confused with the fencing token's.

    >>> app_id_of("7301/1/shapes"), app_id_of("flushtracker: owner of this table")
    ('7301/1/shapes', 'flushtracker: owner of this table (source)')
    """
    return source + _SUFFIX if source.startswith(FENCING_APP_ID) else source


def sources(table: DeltaTable, storage_options: Mapping[str, str]) -> set[str]:
    """Every source that has an ack in the table; raises ``DeltaError`` or ``OSError``."""
    try:
        app_ids = _app_ids(table, storage_options) - {FENCING_APP_ID}
    except ValueError as error:  # also Arrow's for a damaged Parquet file
        raise OSError(f"its log is malformed: {error}") from error
    return {app_id.removesuffix(_SUFFIX) if app_id.startswith(FENCING_APP_ID) else app_id for app_id in app_ids}


def _app_ids(table: DeltaTable, storage_options: Mapping[str, str]) -> set[str]:
    storage = StoreFiles(table.table_uri, storage_options)
    infos = storage.get_file_info_selector(FileSelector(_LOG, allow_not_found=False, recursive=False))
    names = [info.path.rpartition("/")[2] for info in infos]
    storage = StoreFiles(table.table_uri, storage_options, {info.path: info.size for info in infos})
    checkpoints = [(int(match[1]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    last_checkpoint = max((version for version, _ in checkpoints), default=-1)
    found = {name for version, name in checkpoints if version == last_checkpoint}
    found |= {name for name in names if (match := _COMMIT.fullmatch(name)) and int(match[1]) > last_checkpoint}
    # The files are read here and parsed from memory: Arrow's own threads must not call back into Python.
    return {
        app_id
        for name in sorted(found)
        for app_id in _app_ids_in(storage.open_input_file(f"{_LOG}/{name}").read(), is_json=name.endswith(".json"))
    }


def _app_ids_in(content: bytes, *, is_json: bool) -> Iterator[str]:
    if is_json:
        actions = [json.loads(line).get("txn") for line in content.splitlines() if line.strip()]
    else:
        actions = pq.read_table(io.BytesIO(content), columns=["txn"], use_threads=False)["txn"].to_pylist()
    yield from (action["appId"] for action in actions if action)
