"""What executors are told to read, and what they say when they cannot."""

from itertools import pairwise

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.jobs.snapshot.read_plan import PAGES_PER_RANGE, ReadPlan, ReadTask, ShapeReads, plan_ranges
from flushtracker.jobs.snapshot.read_ranges import RangeError, range_failure
from flushtracker.postgres.range_reader import PageRange
from flushtracker.wal.log_offset import OP_INFINITY


def planned(shapes: int, pages: list[int]) -> list[ReadTask]:
    plan = ReadPlan({}, "1", 1, (), (ShapeReads("s", "a", ()),) * shapes, plan_ranges(pages, 180_000))
    return [plan.task(number) for number in range(plan.tasks)]


def test_each_shape_reads_each_range_of_each_table() -> None:
    """Ranges of a shape are neighbours, so that its rows get into few files."""
    first, last = PageRange(0, PAGES_PER_RANGE), PageRange(PAGES_PER_RANGE, None)
    tasks = planned(2, [PAGES_PER_RANGE + 1, 0])
    assert [(task.shape, task.table, task.pages) for task in tasks] == [
        (shape, table, pages) for shape in range(2) for table, pages in [(0, first), (0, last), (1, PageRange(0, None))]
    ]
    assert planned(3, []) == []


def test_offsets_of_a_shapes_rows_are_unique() -> None:
    """A range has fewer rows than there are offsets between two of them, also in the largest table, of 2**32 pages."""
    most_rows = PAGES_PER_RANGE * 32_768 // 28
    offsets = [task.first_op_offset for task in planned(1, [10 * PAGES_PER_RANGE, 1])]
    assert all(later - earlier > most_rows for earlier, later in pairwise(offsets))
    assert (2**32 // PAGES_PER_RANGE) * (offsets[1] - offsets[0]) + most_rows < OP_INFINITY


def test_plan_shows_no_password() -> None:
    """It travels to executors, and may get into a log."""
    assert "hunter2" not in repr(ReadPlan({"password": "hunter2"}, "1", 1, (), (), ()))


def test_errors_of_executors_keep_their_shape_and_kind() -> None:
    """Spark shows a Python error's text in the middle of its own."""
    error = RangeError(3, PostgresError('é: "x"'))
    text = f"Job aborted: PythonException: Traceback (most recent call last):\n  {error}\n\tat x"
    failure = range_failure(text)
    assert failure is not None
    assert (failure[0], type(failure[1]), str(failure[1])) == (3, PostgresError, 'é: "x"')
    failure = range_failure(str(RangeError(None, PostgresUnavailableError("lost"))))
    assert failure is not None
    assert (failure[0], type(failure[1])) == (None, PostgresUnavailableError)
    assert range_failure("java.io.IOException: disk full") is None
