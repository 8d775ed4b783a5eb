"""The hot tail: transactions of shapes as capture publishes them, for clients that need not wait for the log.

This is its pure core: events in, and what a client at a place is shown. Nothing uses it yet. The consumer of
``shape_changes`` in the server will call :class:`~flushtracker.serve.tail.tails.Tails` on the event loop, and
``ShapeAnswers`` will ask it for a page before it reads the log.

- ``shape_tail``: what is known of one shape, without a gap, and where that begins.
- ``tail_link``: what a client has for certain, so that nothing is missing between that and the tail.
- ``tails``: all shapes that clients ask for, within a bound of memory.

The tail is never needed for a right answer. Whatever is unusual drops what it has of a shape, and the log serves that.
"""
