"""A standby that is captured may be promoted, or follow another primary, while the stream goes on."""

from typing import Any, cast

import pytest

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres import server_tables
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.server_tables import ServerTables

Answer = tuple[bool, int | None, bool, str]


def tables(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> ServerTables:
    def rows(*_: object) -> list[Any]:
        return [answer]

    monkeypatch.setattr(server_tables, "limit_statements", lambda *_, **__: None)
    monkeypatch.setattr(server_tables, "rows", rows)
    return ServerTables(cast("Connection", None), "p", "s")


def test_a_standby_on_its_timeline_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a primary is not asked."""
    standby = tables(monkeypatch, (True, 1, True, "capture"))
    standby.standby_timeline = 1
    standby.require_timeline()
    tables(monkeypatch, (False, None, False, "capture")).require_timeline()


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((False, None, True, "capture"), PostgresUnavailableError, "was promoted, or its primary was replaced"),
        ((False, None, False, "capture"), PostgresUnavailableError, "was promoted, or its primary was replaced"),
        ((True, 2, True, "capture"), PostgresUnavailableError, "was promoted, or its primary was replaced"),
        ((True, None, True, "capture"), PostgresUnavailableError, "does not stream from its primary"),
        ((True, None, False, "capture"), PostgresError, 'GRANT pg_read_all_stats TO "capture"'),
    ],
)
def test_what_is_not_known_is_not_assumed(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: type[PostgresError], message: str
) -> None:
    standby = tables(monkeypatch, answer)
    standby.standby_timeline = 1
    with pytest.raises(PostgresError, match=message) as raised:
        standby.require_timeline()
    assert type(raised.value) is kind
