"""Serves shape logs over HTTP to clients of Electric's shape protocol: ``docs/http.md`` has the contract.

A server owns no data. It polls the tables, once for all clients (``poller``), and only caches what they have: parts of
logs and the rows of shapes (``cache``), which any other server computes in the same way. ``shape_answers`` decides what
a request gets; only ``reads`` reads the tables. ``tail`` and ``on_demand`` say what is beside the log, and what is
answered of it that no shape is defined as.
"""
