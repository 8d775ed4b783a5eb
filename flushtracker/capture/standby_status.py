"""``StandbyStatus``: how far the slot may be confirmed, and what the server is told of it.

Four positions, each of which only ever rises:

- ``received_lsn``: up to there the server has sent, hence written, its WAL;
- ``published_lsn``: every transaction with a commit LSN at or below it was published by this process, all of its
  fragments and shape changes confirmed by the broker, or was confirmed to the server before the process began;
- ``acknowledged_lsn``: the greatest ack of this source in the ack table: every shape has flushed what is at or below;
- ``flushed_lsn``: what the server was told last, its ``confirmed_flush_lsn``.

An ack says "up to and including this commit LSN"; the server sends again what commits at or above the position that
it was told. So the position is the ack plus one, and this is the only place where one is added.
"""

from flushtracker.postgres.replication_frames import encode_status_update


class StandbyStatus:
    """The positions of one connection; each may have one writer of its own, in whatever thread.

    ``confirmed_lsn`` is the slot's ``confirmed_flush_lsn`` as the server has it.
    """

    def __init__(self, confirmed_lsn: int, *, published_lsn: int = -1, acknowledged_lsn: int = -1) -> None:
        self.received_lsn = confirmed_lsn
        self.published_lsn = max(published_lsn, confirmed_lsn - 1)
        self.acknowledged_lsn = acknowledged_lsn
        self.flushed_lsn = confirmed_lsn

    def handle_received(self, wal_lsn: int) -> None:
        """The server has sent something at ``wal_lsn``, or says that it has sent all up to there."""
        self.received_lsn = max(self.received_lsn, wal_lsn)

    def handle_published(self, commit_lsn: int) -> None:
        """Everything up to and including the transaction at ``commit_lsn`` is with the broker."""
        self.published_lsn = max(self.published_lsn, commit_lsn)

    def handle_ack(self, ack_lsn: int) -> None:
        """Every transaction up to and including ``ack_lsn`` is flushed."""
        self.acknowledged_lsn = max(self.acknowledged_lsn, ack_lsn)

    def status_update(self, now_us: int, *, reply_requested: bool = False) -> bytes:
        """The standby status update to send now; ``flushed_lsn`` is then what it says."""
        confirmed = min(self.acknowledged_lsn, self.published_lsn)
        # A position past the server's own WAL would make it skip what it has not written yet.
        self.flushed_lsn = max(self.flushed_lsn, min(confirmed + 1, self.received_lsn))
        return encode_status_update(
            written_lsn=self.received_lsn,
            flushed_lsn=self.flushed_lsn,
            now_us=now_us,
            reply_requested=reply_requested,
        )
