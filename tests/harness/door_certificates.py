"""Certificates of a door, in a folder that is replaced atomically, as Kubernetes replaces a mounted secret."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


DAY = timedelta(days=1)


class CertificateAuthority:
    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        authority = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, 0), True)
        self.pem = authority.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def issue(self, ends_in=DAY):
        """Return a certificate for this host and its key, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "door")])
        leaf = (
            _builder(name, self._name, key, ends_in)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return leaf.public_bytes(PEM), private

    def client_context(self, *protocols):
        context = ssl.create_default_context(cadata=self.pem.decode())
        if protocols:
            context.set_alpn_protocols(protocols)
        return context


def _builder(subject, issuer, key, ends_in=DAY):
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + ends_in)
    )


class CertificateFolder:
    """`tls.crt` and `tls.key` behind one symbolic link."""

    def __init__(self, folder):
        self.folder = folder
        self.generation = 0
        self.certificate = folder / "current" / "tls.crt"
        self.key = folder / "current" / "tls.key"

    def write(self, chain, key):
        self.generation += 1
        target = self.folder / f"generation-{self.generation}"
        target.mkdir()
        (target / "tls.crt").write_bytes(chain)
        (target / "tls.key").write_bytes(key)
        link = self.folder / "next"
        link.symlink_to(target)
        link.rename(self.folder / "current")
