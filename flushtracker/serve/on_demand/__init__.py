"""Shapes on demand: definitions that no registered shape has, answered from the log of one that contains them.

- ``selection``: what a definition shows of the rows of that shape, its parent.
- ``containment``: finds the parent, by the registry alone, so that every server finds the same one.
- ``selected_log``: the parent's rows, and its transactions, as the definition shows them.
- ``required_texts``: tells without judging rows that a definition is not concerned by their changes.
- ``parent_watches``: wakes only those clients whom a change of their parent concerns.
- ``kept_selections``: the definitions that clients ask for, within bounds.

A row is shown only if the condition is true for its state after a transaction, and is told by the parent's fold before
and after it. So nothing depends on the old rows that the server sends, nor on large values that an update omits.
"""
