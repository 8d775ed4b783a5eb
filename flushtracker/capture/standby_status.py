"""``StandbyStatus``: how far the slot may be confirmed, and how far it was.

Four positions, none of which ever decreases:

- ``received_lsn``: the server has sent, hence written, its WAL up to here;
- ``published_lsn``: every transaction with a commit LSN at or below it was published by this process, all of its
  fragments and shape changes confirmed by the broker, or was confirmed to the server before the process began;
- ``acknowledged_lsn``: the greatest ack of this source in the ack table: every shape has flushed what is at or below;
- ``flushed_lsn``: the flush position last reported to the server, its ``confirmed_flush_lsn``.

An ack means "up to and including this commit LSN"; the server resends what commits at or above the reported position.
So that position is the ack plus one, and this is the only place where one is added.
"""

from flushtracker.postgres.replication_frames import encode_status_update


class StandbyStatus:
    """The positions of one connection; each may have its own writer thread.

    ``confirmed_lsn`` is the slot's ``confirmed_flush_lsn`` as the server has it.
    """

    def __init__(self, confirmed_lsn: int, *, published_lsn: int = -1, acknowledged_lsn: int = -1) -> None:
        self.received_lsn = confirmed_lsn
        self.published_lsn = max(published_lsn, confirmed_lsn - 1)
        self.acknowledged_lsn = acknowledged_lsn
        self.flushed_lsn = confirmed_lsn

    def handle_received(self, wal_lsn: int) -> None:
        """The server has sent a message at ``wal_lsn``, or states that it has sent everything up to there."""
        self.received_lsn = max(self.received_lsn, wal_lsn)

    def handle_published(self, commit_lsn: int) -> None:
        """The broker has confirmed everything up to and including the transaction at ``commit_lsn``."""
        self.published_lsn = max(self.published_lsn, commit_lsn)

    def handle_ack(self, ack_lsn: int) -> None:
        """Every transaction up to and including ``ack_lsn`` is flushed."""
        self.acknowledged_lsn = max(self.acknowledged_lsn, ack_lsn)

    def status_update(self, now_us: int, *, reply_requested: bool = False) -> bytes:
        """The standby status update to send now; sets ``flushed_lsn`` to the position it reports."""
        confirmed = min(self.acknowledged_lsn, self.published_lsn)
        # A position past the end of the server's WAL would make it skip changes that it has not written yet.
        self.flushed_lsn = max(self.flushed_lsn, min(confirmed + 1, self.received_lsn))
        return encode_status_update(
            written_lsn=self.received_lsn,
            flushed_lsn=self.flushed_lsn,
            now_us=now_us,
            reply_requested=reply_requested,
        )
