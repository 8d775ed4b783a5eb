"""The snapshots' job: the rows that a table already has, into the logs of its shapes."""
