"""What a managed server has instead of the attribute REPLICATION and of a password that stays."""

from contextlib import closing
from pathlib import Path

import pytest

from flushtracker.errors import PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect, rows
from flushtracker.postgres.slot import check_server


def test_a_role_may_replicate_by_a_membership(postgres: LocalPostgres) -> None:
    """As on Amazon's servers, where nobody can have the attribute; inherited memberships count, too."""
    postgres.execute("CREATE ROLE rds_replication", "CREATE ROLE team", "CREATE ROLE capture LOGIN")
    with closing(connect({**postgres.options, "user": "capture"})) as connection:
        with pytest.raises(PostgresError, match="role capture may not read a slot; GRANT rds_replication TO"):
            check_server(connection)
        postgres.execute("GRANT rds_replication TO team", "GRANT team TO capture")
        check_server(connection)


def test_a_token_in_a_passfile_is_read_at_each_connection(postgres: LocalPostgres, tmp_path: Path) -> None:
    """So a program that writes a new one in time is enough for tokens that expire; one that has expired is refused."""
    (postgres.data / "pg_hba.conf").write_text(
        "host all capture 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
    )
    passfile = tmp_path / "passfile"
    passfile.touch(mode=0o600)
    postgres.execute("CREATE ROLE capture LOGIN PASSWORD 'first'", "SELECT pg_reload_conf()")
    options = {**postgres.options, "user": "capture", "passfile": str(passfile)}
    for token in ("first", "second"):
        postgres.execute(f"ALTER ROLE capture PASSWORD '{token}'")
        with pytest.raises(PostgresError, match=r"password authentication failed|no password supplied"):
            connect(options)
        passfile.write_text(f"*:*:*:capture:{token}\n")
        with closing(connect(options)) as connection:
            assert rows(connection, "SELECT current_user") == [("capture",)]
