"""The largest LSN that a PostgreSQL replication slot may confirm while many writers flush at their own pace."""
