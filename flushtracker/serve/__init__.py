"""Serves shape logs over HTTP to clients of Electric's shape protocol: ``docs/http.md`` has the contract.

A server owns nothing. It looks at the tables all the time, once for all clients (``watch``), and what it keeps are
copies of what the tables have: parts of logs (``kept_pages``) and the rows of shapes (``kept_states``), which any other
server makes in the same way. ``shape_answers`` decides what a request gets, ``reads`` alone reads the tables.
"""
