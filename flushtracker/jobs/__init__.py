"""The Spark jobs, each in a room named as its command, and ``warmup``, which makes them start faster."""
