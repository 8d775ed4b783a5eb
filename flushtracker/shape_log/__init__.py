"""A shape's writer without its storage, and the meaning of the rows in its log. Pure code."""
