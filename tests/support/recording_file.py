"""Writes the format that recordings of WAL have, for tests that need a recording of their own."""

from collections.abc import Iterable
from struct import pack

from flushtracker.trials.recordings.recording import RecordedMessage


def encode_recording(messages: Iterable[RecordedMessage]) -> bytes:
    """The uncompressed content of a recording: before each message its header of two LSNs and a length."""
    return b"".join(
        pack(">QQI", message.wal_start, message.wal_end, len(message.data)) + message.data for message in messages
    )
