"""The hot tail: transactions of shapes as capture publishes them, for clients that need not wait for the log.

- ``shape_tail``: what is known of one shape, without a gap, and where that begins.
- ``tail_link``: what a client has for certain, so that nothing is missing between that and the tail.
- ``tails``: all shapes that clients ask for, within a bound of memory.
- ``tail_pages``: a client's next page of messages. ``ShapeAnswers`` asks for it before it reads the log.
- ``tail_reader``: reads the topic in its own thread, and hands events to the event loop. It alone needs Kafka's client.

The tail is never needed for a right answer. Whatever is unusual drops what it has of a shape, and the log serves that.
"""
