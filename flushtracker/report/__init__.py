"""The report on a source's acks: the figures, and rich's tables and matplotlib's plot of them, which are an extra."""
