"""Replays a recording of WAL as the streams that capture would publish."""
