"""Compares what folding each shape's log gives with the shape's query over its table."""
