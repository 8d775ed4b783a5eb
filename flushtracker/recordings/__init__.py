"""Recordings of WAL: replayed as the streams of capture, and what verifies the shape logs written from them."""
