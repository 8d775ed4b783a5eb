"""The snapshots' job: copies the existing rows of tables into the logs of their shapes."""
