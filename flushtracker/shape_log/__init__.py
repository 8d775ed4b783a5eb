"""A shape's writer without its storage, and what the rows of its log mean. Pure code."""
