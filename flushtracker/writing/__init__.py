"""The shape log: what its rows mean, without storage, clock or thread."""
