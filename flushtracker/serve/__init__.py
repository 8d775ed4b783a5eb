"""Serves shape logs over HTTP to clients of Electric's shape protocol: ``docs/http.md`` has the contract.

A server owns no data. It polls the tables, once for all clients (``poller``), and only caches parts of logs and the
rows of shapes (``cache``). Any other server computes the same. ``shape_answers`` decides what
a request gets; only ``reads`` reads the tables. ``tail`` adds changes that the log lacks yet. ``on_demand`` answers
definitions that no shape has, from the log of one that contains them.
"""
