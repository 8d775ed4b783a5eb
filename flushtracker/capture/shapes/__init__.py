"""Which shapes are routed, from when on, and what becomes of them when files, tables or partitions change."""
