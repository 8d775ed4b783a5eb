"""Client certificates, channel binding, service files and passfiles: what works, and what each refusal says to do.

None is retried as if the server were away, and no secret is in a message.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import (
    connect,
    connect_for_replication,
    connect_for_snapshot,
    rows,
    server_name,
)
from tests.support.certificates import HOST, Authority
from tests.support.secret_watch import new_secret
from tests.support.secured_postgres import CERTIFICATE_USER, SecuredPostgres
from tests.support.waiting import wait_until

Options: TypeAlias = dict[str, str]
_USER: Final = "by_password"
_PASSWORD: Final = new_secret()
_KEY_PASSWORD: Final = new_secret()


@pytest.fixture(scope="module")
def server(secured_server: SecuredPostgres) -> SecuredPostgres:
    """With a role for each way."""
    secured_server.execute(
        f"CREATE ROLE {CERTIFICATE_USER} LOGIN REPLICATION",
        f"CREATE ROLE {_USER} LOGIN REPLICATION PASSWORD '{_PASSWORD}'",
        f"CREATE ROLE expired LOGIN PASSWORD '{_PASSWORD}' VALID UNTIL '2020-01-01'",
        f"GRANT CONNECT ON DATABASE postgres TO {CERTIFICATE_USER}, {_USER}, expired",
    )
    return secured_server


@pytest.fixture
def base(server: SecuredPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    """The server, with its certificate verified; nothing comes from the home of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    yield {
        "host": HOST,
        "port": str(server.port),
        "dbname": "postgres",
        "sslmode": "verify-full",
        "sslrootcert": str(server.ca_file),
    }
    server.revoke()


def client_certificate(
    folder: Path,
    authority: Authority,
    name: str = CERTIFICATE_USER,
    *,
    password: str | None = None,
    expired: bool = False,
) -> Options:
    """The options for a new certificate and its key."""
    key, certificate = authority.issue(name, expired=expired, password=password)
    (folder / "client.key").unlink(missing_ok=True)
    (folder / "client.key").touch(mode=0o600)
    (folder / "client.key").write_text(key)
    (folder / "client.pem").write_text(certificate)
    options = {"user": CERTIFICATE_USER, "sslkey": f"{folder}/client.key", "sslcert": f"{folder}/client.pem"}
    return options | ({"sslpassword": password} if password else {})


def require_works(options: Options, user: str) -> None:
    """As capture, its stream and snapshots connect."""
    for opened in (connect(options), connect_for_replication(options), connect_for_snapshot(options)):
        with closing(opened) as connection:
            assert rows(connection, "SELECT session_user") == [(user,)]


def refusal(options: Options) -> str:
    """The message for a connection that no retry can make, on one line."""
    with pytest.raises(PostgresError) as caught:
        connect(options)
    assert not isinstance(caught.value, PostgresUnavailableError)
    message = str(caught.value)
    assert "secret-" not in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("password", [None, _KEY_PASSWORD], ids=["plain key", "encrypted key"])
def test_a_role_may_have_a_certificate(
    server: SecuredPostgres, base: Options, tmp_path: Path, password: str | None
) -> None:
    require_works(base | client_certificate(tmp_path, server.authority, password=password), CERTIFICATE_USER)


@pytest.mark.parametrize("password", [{}, {"sslpassword": new_secret()}], ids=["no password", "wrong password"])
def test_the_password_of_a_key_is_wrong(
    server: SecuredPostgres, base: Options, tmp_path: Path, password: Options
) -> None:
    """Without one, OpenSSL would ask on the terminal, and wait."""
    client = client_certificate(tmp_path, server.authority, password=_KEY_PASSWORD)
    del client["sslpassword"]
    message = refusal(base | client | password)
    assert message.endswith('client.key": bad decrypt; correct sslkey, or its password, sslpassword')


def test_what_is_wrong_with_a_client_certificate_is_named(
    server: SecuredPostgres, base: Options, tmp_path: Path
) -> None:
    good = base | client_certificate(tmp_path, server.authority)
    (tmp_path / "client.key").chmod(0o644)
    assert refusal(good).endswith("; chmod 600 that file")
    assert refusal({**good, "sslkey": "/none"}).endswith('but not private key file "/none"; correct sslkey')
    assert refusal({**good, "sslcert": "/none"}).endswith("; set sslcert and sslkey to files that exist")
    other = base | client_certificate(tmp_path, server.authority, "another")
    assert refusal(other).endswith("; use a certificate whose name is the user's, or a map in pg_ident.conf")
    expired = base | client_certificate(tmp_path, server.authority, expired=True)
    assert refusal(expired).endswith("alert certificate expired; renew the client's certificate, sslcert")
    foreign = base | client_certificate(tmp_path, Authority("a client's CA"))
    assert "alert unknown ca; check that the server's ssl_ca_file has the authority" in refusal(foreign)


def test_a_revoked_certificate_is_named(server: SecuredPostgres, base: Options, tmp_path: Path) -> None:
    """That of the client by the server, and that of the server by ``sslcrl``."""
    client = base | client_certificate(tmp_path, server.authority)
    require_works(client, CERTIFICATE_USER)
    server.revoke(Path(client["sslcert"]).read_text())

    def is_refused() -> bool:
        """Each connection has the settings of the moment that its process began."""
        try:
            connect(client).close()
        except PostgresError:
            return True
        return False

    wait_until(is_refused, "the list of revoked certificates", 30)
    assert refusal(client).endswith("alert certificate revoked; replace the client's certificate, sslcert")
    (tmp_path / "revoked.pem").write_text(server.authority.revoked(server.certificate))
    mine = {**base, "user": _USER, "password": _PASSWORD, "sslcrl": str(tmp_path / "revoked.pem")}
    assert refusal(mine).endswith("certificate revoked; replace it")


def test_channel_binding_may_be_required(server: SecuredPostgres, base: Options, tmp_path: Path) -> None:
    """A certificate has none."""
    required = base | {"channel_binding": "require"}
    require_works({**required, "user": _USER, "password": _PASSWORD}, _USER)
    message = refusal(required | client_certificate(tmp_path, server.authority))
    assert "channel binding required, but" in message
    assert message.endswith("scram-sha-256 over TLS for this user; or correct channel_binding")
    assert refusal({**base, "user": _USER, "channel_binding": "hunter"}).endswith('value: "hunter"; correct it')
    unencrypted = {**required, "user": _USER, "password": _PASSWORD, "sslmode": "disable"}
    assert "no pg_hba.conf entry" in refusal(unencrypted)


def test_a_method_may_be_required(base: Options) -> None:
    require_works({**base, "user": _USER, "password": _PASSWORD, "require_auth": "scram-sha-256"}, _USER)
    message = refusal({**base, "user": _USER, "password": _PASSWORD, "require_auth": "password"})
    assert message.endswith("; correct require_auth, or the server's pg_hba.conf")


def test_a_role_that_has_expired_is_refused_as_a_wrong_password(base: Options) -> None:
    """The server's own log alone says which; so the message has both."""
    message = refusal({**base, "user": "expired", "password": _PASSWORD})
    assert 'password authentication failed for user "expired"; correct user and password' in message
    assert message.endswith(", or the role's VALID UNTIL")


def test_a_service_file_may_have_everything(base: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the password of a key, which no default of ours overrides."""
    lines = [f"{name}={value}" for name, value in {**base, "user": _USER, "password": _PASSWORD}.items()]
    file = tmp_path / "services"
    file.write_text("\n".join(["[db]", *lines, "[wrong]", *lines, f"password={new_secret()}", "[bad]", "nonsense"]))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    require_works({"service": "db"}, _USER)
    assert server_name({"service": "db"}) == "service db"
    wrong = refusal({"service": "wrong", "password": new_secret()})
    assert wrong.startswith("no connection to PostgreSQL at service wrong: ")
    assert "which is from postgres.password (libpq takes" in wrong
    assert 'definition of service "none" not found; correct service' in refusal({"service": "none"})
    assert "syntax error in service file" in refusal({"service": "bad"})
    monkeypatch.setenv("PGSERVICEFILE", "/none")
    assert 'service file "/none" not found; correct it, or PGSERVICEFILE' in refusal({"service": "db"})


def test_an_encrypted_key_of_a_service(
    server: SecuredPostgres, base: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its password is in the service file as well."""
    options = base | client_certificate(tmp_path, server.authority, password=_KEY_PASSWORD)
    lines = [f"{name}={value}" for name, value in options.items()]
    (tmp_path / "services").write_text("\n".join(["[db]", *lines]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    require_works({"service": "db"}, CERTIFICATE_USER)


def test_a_passfile_that_others_may_read_is_named(base: Options, tmp_path: Path) -> None:
    """libpq ignores it, and says so on the terminal only."""
    passfile = tmp_path / "passfile"
    passfile.write_text(f"*:*:*:{_USER}:{_PASSWORD}\n")
    passfile.chmod(0o644)
    options = {**base, "user": _USER, "passfile": str(passfile)}
    assert refusal(options).endswith(f"else the passfile {passfile}, which it ignores: chmod 600 it)")
    passfile.chmod(0o600)
    require_works(options, _USER)
