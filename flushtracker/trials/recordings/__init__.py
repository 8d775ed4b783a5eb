"""Recordings of WAL: replays them as capture's streams, and compares them with shape logs."""
