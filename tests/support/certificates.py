"""Certificates of a test's own authority, as PEM, for servers on this machine."""

from datetime import datetime, timedelta, timezone
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

HOST: Final = "localhost"
"""The name in each certificate; for a client that connects by address, it is wrong."""
_DAY: Final = timedelta(days=1)


class Authority:
    """A certificate authority; ``certificate`` is what its clients trust."""

    def __init__(self, name: str) -> None:
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(timezone.utc)
        self._certificate = (
            _unsigned(self._name, self._name, self._key, now - _DAY, now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> str:
        return _pem(self._certificate)

    def issue(self, name: str = HOST, *, expired: bool = False, password: str | None = None) -> tuple[str, str]:
        """A new key, encrypted if there is a password, and a certificate for it; an expired one ended a day ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption(),
        )
        return private.decode(), _pem(self._signed(key, name, expired=expired))

    def issue_store(self, name: str, password: str) -> bytes:
        """A new key and a certificate for it, as an encrypted store of PKCS #12."""
        key = ec.generate_private_key(ec.SECP256R1())
        encryption = serialization.BestAvailableEncryption(password.encode())
        certificate = self._signed(key, name)
        return pkcs12.serialize_key_and_certificates(b"client", key, certificate, [self._certificate], encryption)

    def revoked(self, *certificates: str) -> str:
        """The list of revoked certificates, with these."""
        now = datetime.now(timezone.utc)
        listed = x509.CertificateRevocationListBuilder(self._name, now - _DAY, now + _DAY)
        for certificate in certificates:
            number = x509.load_pem_x509_certificate(certificate.encode()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - _DAY).build()
            listed = listed.add_revoked_certificate(entry)
        return listed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def _signed(self, key: ec.EllipticCurvePrivateKey, name: str, *, expired: bool = False) -> x509.Certificate:
        end = datetime.now(timezone.utc) + (-_DAY if expired else _DAY)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return (
            _unsigned(subject, self._name, key, end - 10 * _DAY, end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
