"""``CheckpointOrigin``: a small file in a checkpoint that records which streams the checkpoint was made for.

A checkpoint's Kafka offsets are meaningless for another topic, even a recreated one of the same name, and so is its
list of files for another directory. So this file, written before Spark writes anything there, names the streams and
where fragments begin after a recovery. A job on other streams is refused.
"""

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.errors import StateError
from flushtracker.spark.committed_state import Remedies
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.recovery_plan import RecoveryPlan

logger = logging.getLogger(__name__)

_FILE: Final = "flushtracker.json"
_VERSION: Final = 1


class CheckpointOrigin:
    """The file in ``checkpoint``; every method raises ``StateError`` if the storage fails."""

    def __init__(self, spark: SparkSession, checkpoint: str, remedies: Remedies) -> None:
        self._remedies = remedies
        self._checkpoint = checkpoint
        self._spark = spark
        try:
            self._files = HadoopFiles(spark, checkpoint)
        except JAVA_ERRORS as error:
            raise self._storage_error(error) from error

    def open(self, identity: Mapping[str, str]) -> RecoveryPlan:
        """Return where fragments begin. A new checkpoint is first marked as created for the streams of ``identity``.

        Raises:
            StateError: the checkpoint was made for other streams, or by another job.
        """
        try:
            content = self._files.read(_FILE)
            if content is None:
                if others := sorted(set(self._files.names()) & {"metadata", "offsets", "commits", "state", "sources"}):
                    raise StateError(
                        f"checkpoint {self._checkpoint} has {', '.join(others)}, but no {_FILE}, so it was made by "
                        f"another job or is incomplete; set this job's checkpoint to its own, or to a new path"
                    )
                self._write(identity, RecoveryPlan())
                return RecoveryPlan()
        except JAVA_ERRORS as error:
            raise self._storage_error(error) from error
        return self._checked(content, identity)

    def replace(self, identity: Mapping[str, str], starts: RecoveryPlan) -> None:
        """Rename the existing checkpoint, and start a new one with ``starts``.

        An object store renames objects one by one. A partly renamed checkpoint must not be continued, so this file is
        moved first: without it, the next start refuses the rest, and this may be called again.
        """
        backup = f"{self._checkpoint.rstrip('/')}.{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}"
        try:
            if self._files.names():
                content = self._files.read(_FILE)
                self._files.delete(_FILE)
                is_moved = self._files.move_folder(backup)
                if content is not None:
                    (HadoopFiles(self._spark, backup) if is_moved else self._files).write(_FILE, content)
                if not is_moved:
                    raise StateError(
                        f"checkpoint {self._checkpoint} cannot be renamed to {backup}; move it away, or set "
                        f"this job's checkpoint to a new path"
                    )
                logger.info("old checkpoint renamed checkpoint=%s now=%s", self._checkpoint, backup)
            self._write(identity, starts)
        except JAVA_ERRORS as error:
            raise self._storage_error(error) from error

    def _checked(self, content: bytes, identity: Mapping[str, str]) -> RecoveryPlan:
        try:
            written, starts = parse_origin(content)
        except ValueError as error:
            raise StateError(
                f"{self._checkpoint}/{_FILE} is malformed: {error}; restore it, or {self._remedies.start_over}"
            ) from error
        for name in sorted({*written, *identity}):
            if written.get(name) != identity.get(name):
                raise StateError(
                    f"checkpoint {self._checkpoint} was made for {_key(name)} {written.get(name)}, but {_key(name)} "
                    f"is now {identity.get(name)}; {self._remedies.change_back}"
                )
        return starts

    def _write(self, identity: Mapping[str, str], starts: RecoveryPlan) -> None:
        fields = {"version": _VERSION, "streams": dict(identity), "starts": starts.to_json()}
        if not self._files.write(_FILE, (json.dumps(fields, indent=1) + "\n").encode()):
            # Without it, the next start would read the streams from their beginning and skip nothing.
            raise StateError(
                f"the storage of checkpoint {self._checkpoint} refuses to rename a file to {_FILE}; correct that, or "
                f"set this job's checkpoint to another path, and start in the same way again"
            )

    def _storage_error(self, error: Exception) -> StateError:
        return StateError(f"checkpoint {self._checkpoint} cannot be read or written: {java_reason(error)}")


def _key(name: str) -> str:
    return "the log" if name == "log" else name


def parse_origin(content: bytes) -> tuple[dict[str, str], RecoveryPlan]:
    """The streams that a checkpoint was made for, and where fragments begin; raises ``ValueError``."""
    try:
        fields = json.loads(content)
        if "version" not in fields:
            raise ValueError("a version before 0.1.0 wrote it")
        if fields["version"] != _VERSION:
            raise ValueError(f"it has version {fields['version']!r:.20}, but this program reads {_VERSION}")
        streams = fields["streams"]
        if not all(isinstance(value, str) for value in streams.values()):
            raise ValueError("it names a stream by something that is not text")
        return streams, RecoveryPlan.from_json(fields["starts"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what this program writes") from error
