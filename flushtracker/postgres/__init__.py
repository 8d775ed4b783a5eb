"""PostgreSQL as a source: its catalog, its slot and its stream. The only package that needs psycopg."""
