"""The report on a source's acks: figures, tables and a plot. Tables and plot need the ``report`` extra."""
