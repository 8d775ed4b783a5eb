"""Subsets: some of a shape's rows at one offset, by a condition, in an order, and cut.

- ``subset_request``: what a client asks for, in a query string or a body.
- ``row_order``: the order of rows, as PostgreSQL's, or refused.
- ``subset_rows``: chooses the rows.
- ``subset_answers``: at which offset they are, and where the client's stream continues.

The client merges the rows with its stream, and skips transactions that a subset says it contains. Here a subset says
that it contains none. Its rows are never older than the offset of its answer, and a client that has an offset keeps it.
So the stream has every later change, in order. docs/decisions/0054-subsets.md has why that is enough.
"""
