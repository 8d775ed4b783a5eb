"""Recordings of WAL: replayed as the streams of capture, and compared with the shape logs written from them."""
