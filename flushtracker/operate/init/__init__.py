"""`flushtracker init`: from a database to a configuration, without changing anything on the server."""
