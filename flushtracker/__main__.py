"""``python -m flushtracker``, and the command, wherever the package is installed."""

from flushtracker.process.early_interrupt import end_at_interrupt

end_at_interrupt()

from flushtracker.cli import run  # noqa: E402  imports take time

if __name__ == "__main__":
    run()
