"""What a checkpoint was made for: a small file in it, written before Spark writes anything there.

Its Kafka offsets mean nothing in another topic, be it one of the same name, nor its list of files in another directory.
So the file names the streams, and where fragments begin after a recovery, and a job on other streams is refused.
"""

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.errors import StateError
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.tracking.recovery_plan import RecoveryPlan

logger = logging.getLogger(__name__)

_FILE: Final = "flushtracker.json"
_VERSION: Final = 1
_WAY_OUT: Final = "set it back, name a new checkpoint in state.checkpoint, or start once with --recover"


class CheckpointOrigin:
    """The file in ``checkpoint``; every method raises ``StateError`` where the storage fails."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        try:
            self._files = HadoopFiles(spark, checkpoint)
        except JAVA_ERRORS as error:
            raise self._unusable(error) from error

    def open(self, identity: Mapping[str, str]) -> RecoveryPlan:
        """Where fragments begin; a new checkpoint is made one for the streams of ``identity``.

        Raises:
            StateError: it was made for other streams, or not by this job.
        """
        try:
            text = self._files.read_text(_FILE)
            if text is None:
                if others := sorted(set(self._files.names()) & {"metadata", "offsets", "commits", "state", "sources"}):
                    raise StateError(
                        f"checkpoint {self._checkpoint} has {', '.join(others)}, but no {_FILE}, so it was made by "
                        f"another job, or is not whole; name this job's own in state.checkpoint, or a new one"
                    )
                self._write(identity, RecoveryPlan())
                return RecoveryPlan()
        except JAVA_ERRORS as error:
            raise self._unusable(error) from error
        return self._starts(text, identity)

    def replace(self, identity: Mapping[str, str], starts: RecoveryPlan) -> None:
        """Put what is there aside under a name of its own, and begin a new checkpoint with ``starts``."""
        aside = f"{self._checkpoint.rstrip('/')}.{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}"
        try:
            if self._files.names():
                if not self._files.move_folder(aside):
                    raise StateError(
                        f"checkpoint {self._checkpoint} cannot be renamed to {aside}; move it away, or name a new one"
                    )
                logger.info("old checkpoint put aside checkpoint=%s now=%s", self._checkpoint, aside)
            self._write(identity, starts)
        except JAVA_ERRORS as error:
            raise self._unusable(error) from error

    def _starts(self, text: str, identity: Mapping[str, str]) -> RecoveryPlan:
        try:
            fields = json.loads(text)
            version, written = fields["v"], fields["streams"]
            starts = RecoveryPlan.from_json(fields["starts"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{self._checkpoint}/{_FILE} is damaged: restore it, or start once with --recover"
            ) from error
        if version != _VERSION:
            raise StateError(f"{self._checkpoint}/{_FILE} has version {version}, this program reads {_VERSION}")
        for name in sorted({*written, *identity}):
            if written.get(name) != identity.get(name):
                raise StateError(
                    f"checkpoint {self._checkpoint} was made for source.{name} {written.get(name)}, and now it is "
                    f"{identity.get(name)}; {_WAY_OUT}"
                )
        return starts

    def _write(self, identity: Mapping[str, str], starts: RecoveryPlan) -> None:
        fields = {"v": _VERSION, "streams": dict(identity), "starts": starts.to_json()}
        self._files.write_text(_FILE, json.dumps(fields, indent=1) + "\n")

    def _unusable(self, error: Exception) -> StateError:
        return StateError(f"checkpoint {self._checkpoint} cannot be read or written: {java_reason(error)}")
