"""Certificates of a test's own authority, as PEM, for servers on this machine."""

from datetime import datetime, timedelta, timezone
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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

    def issue(self, *, expired: bool = False) -> tuple[str, str]:
        """A new key, and a certificate for it; an expired one ended a day ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(timezone.utc) + (-_DAY if expired else _DAY)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
        certificate = (
            _unsigned(name, self._name, key, end - 10 * _DAY, end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private.decode(), _pem(certificate)


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
