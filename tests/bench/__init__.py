"""Benchmarks, which ``make bench`` runs and prints as tables. Nothing here asserts a time.

A benchmark is a module with a function ``tables(*, quick)``, listed in ``__main__``. It yields each table as soon as it
is measured; ``quick`` selects the smallest sizes, to check that the benchmark runs at all.
"""
