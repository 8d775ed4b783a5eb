"""The file system: event streams as directories of JSON-lines files, and recordings of WAL."""
