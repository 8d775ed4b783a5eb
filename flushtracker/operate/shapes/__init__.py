"""`flushtracker check`, `add-shape`, `remove-shape` and `resync`."""
