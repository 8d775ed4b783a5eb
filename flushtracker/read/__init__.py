"""``flushtracker read``: prints a shape's rows, or its log."""
