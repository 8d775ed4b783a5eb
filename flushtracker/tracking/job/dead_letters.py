"""``DeadLetters``: appends refused flush notifications to a Delta table, from the driver.

They are malformed, or were sent by another program than the shape's writer.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from pyspark.sql import Row, SparkSession

from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.errors import SinkError, listed, printable
from flushtracker.spark.hadoop_files import spark_path

logger = logging.getLogger(__name__)

_MOST_PLACES: Final = 100


class DeadLetters:
    def __init__(self, spark: SparkSession, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._spark = spark
        self._uri = spark_path(uri)
        self._table = DeadLetterTable(self._uri, storage_options)

    def require_writable(self) -> None:
        """Raise ``SinkError`` if the folder cannot be written, or has something other than the table."""
        self._table.require_usable()

    def append(self, letters: Sequence[Row], batch_id: int, refused: int) -> None:
        """Append dead letters, of the ``refused`` notifications of a batch; a rerun of the batch adds nothing.

        They never stop the job: a failure to store them is only logged.
        """
        written_at = datetime.now(timezone.utc)
        rows = [
            {name: each[name] for name in ("place", "reason", "value")}
            | {"batch_id": batch_id, "written_at": written_at}
            for each in letters
        ]
        # The query's id belongs to the checkpoint: a new checkpoint begins at batch 0.
        query_id = str(self._spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        try:
            self._table.append(rows, query_id, batch_id)
        except SinkError as error:
            places = printable(listed(list(dict.fromkeys(each["place"] for each in letters[:_MOST_PLACES]))))
            logger.error(  # noqa: TRY400  the reason is in the message
                "flush notifications refused and not stored batch_id=%d count=%d places=%s dead_letters=%s reason=%s",
                *(batch_id, refused, places, self._uri, error),
            )
        else:
            logger.warning(
                "flush notifications refused batch_id=%d count=%d dead_letters=%s", batch_id, refused, self._uri
            )
