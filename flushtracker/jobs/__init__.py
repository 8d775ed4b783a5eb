"""The Spark jobs, each in a room named as its command."""
