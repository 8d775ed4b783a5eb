"""Replays a recording of WAL as the streams that the tracking job reads, with simulated writers."""
