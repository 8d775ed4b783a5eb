"""``tests/durations.json`` has names of tests that are there, so that each is long, and begins early, as it says."""

from tests.support.schedule import is_there, kept_durations


def test_each_kept_duration_is_of_a_file_or_a_function_that_exists() -> None:
    """Without parameters, by which no test is looked up; ``pytest --write-durations`` drops the names of others."""
    assert [name for name in kept_durations() if not is_there(name)] == []


def test_a_name_with_parameters_and_one_of_no_test_are_noticed() -> None:
    name = "tests/unit/project/test_kept_durations.py"
    function = test_each_kept_duration_is_of_a_file_or_a_function_that_exists.__name__
    assert is_there(name)
    assert is_there(f"{name}::{function}")
    assert not is_there(f"{name}::{function}[seed 0]")
    assert not is_there(f"{name}::test_gone")
    assert not is_there("tests/unit/test_gone.py")
