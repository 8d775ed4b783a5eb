"""Benches: how long things take, in tables to read. Nothing here asserts a time; ``make bench`` runs them.

A bench is a module with a function ``tables(*, quick)``, named in ``__main__``. It yields a table as soon as that is
measured; ``quick`` asks for the least sizes, to see that it runs at all.
"""
