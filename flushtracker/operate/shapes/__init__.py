"""`flushtracker add-shape` and `remove-shape`."""
