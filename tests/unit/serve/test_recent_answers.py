"""What the HTTP server says of its last minute."""

from random import Random

from flushtracker.serve.recent_answers import RecentAnswers


def test_answers_of_the_last_minute_are_counted_and_older_ones_forgotten() -> None:
    """Against a list of all, to five seconds."""
    rng, now_s = Random(7), [1_000.0]  # noqa: S311  repeatable
    recent, all_answers = RecentAnswers(lambda: now_s[0]), list[tuple[float, int]]()
    for _ in range(2_000):
        now_s[0] += rng.choice([0, 0, 0.1, 3, 20])
        status = rng.choice([200, 304, 404, 500, 503])
        recent.note(status)
        all_answers.append((now_s[0], status))
        since_s = now_s[0] - 60
        found = recent.last_minute()
        least = [code for at_s, code in all_answers if at_s > since_s + 5]
        most = [code for at_s, code in all_answers if at_s > since_s]
        assert len(least) <= found.answers <= len(most)
        assert sum(code >= 500 for code in least) <= found.errors <= sum(code >= 500 for code in most)
    now_s[0] += 61
    assert recent.last_minute() == (0, 0)
