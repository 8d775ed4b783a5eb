"""PostgreSQL's write-ahead log as values: LSNs, offsets, changes, decoded ``pgoutput``, transaction fragments. Pure."""
