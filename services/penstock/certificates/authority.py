"""A certificate authority in a folder, and the certificates that it signs for processes of the mesh."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.chassis.config import ConfigError
from penstock.chassis.security.certificates import CertificatePaths
from penstock.chassis.security.identity import IdentityInvalid, PeerIdentity, new_identity

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
CLOCK_SKEW = timedelta(minutes=5)  # a certificate is valid this long before it is made
TRUST_DOMAIN = "penstock.local"


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates for one trust domain."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    trust_domain: str

    @classmethod
    def create(cls, trust_domain: str = TRUST_DOMAIN, *, valid: timedelta = timedelta(days=3_650)) -> Self:
        """Raises IdentityInvalid if the trust domain is no DNS name in lower case."""
        new_identity(trust_domain, "operator", "check")
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Penstock authority of {trust_domain}")
        uri = x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")
        certificate = (
            _builder(name, name, key.public_key(), valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, trust_domain)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read an authority that `save` wrote. Raises ConfigError."""
        try:
            certificate = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
            key = serialization.load_pem_private_key((folder / CA_KEY_FILE).read_bytes(), password=None)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            message = f"{folder} holds no authority: {error}; make one with `penstock certs ca --out {folder}`"
            raise ConfigError(message) from error
        assert isinstance(key, ec.EllipticCurvePrivateKey), "`save` writes keys of this type alone"
        uri = names.get_values_for_type(x509.UniformResourceIdentifier)[0]
        return cls(certificate, key, uri.removeprefix("spiffe://"))

    def save(self, folder: Path) -> None:
        """Write certificate and key; the key is readable by this user alone."""
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / CA_KEY_FILE, _key_pem(self.key))
        write_public(folder / CA_FILE, self.certificate_pem)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        tier: str,
        instance_id: str,
        *,
        valid: timedelta = timedelta(days=30),
        dns_names: tuple[str, ...] = (),
        starts_at: datetime | None = None,
    ) -> "Leaf":
        """Make a certificate of a process. Raises IdentityInvalid. `starts_at` is now unless it is given."""
        identity = new_identity(self.trust_domain, tier, instance_id)
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            _builder(_name(f"{tier} {instance_id}"), self.certificate.subject, key.public_key(), valid, starts_at)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(_BOTH_ENDS, critical=False)
            .add_extension(_names_of(identity, dns_names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Leaf(identity, certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))

    def issue_to(
        self, folder: Path, name: str, tier: str, instance_id: str, *, valid: timedelta = timedelta(days=30)
    ) -> CertificatePaths:
        """Write `<name>.pem`, `<name>.key` and `ca.pem` into `folder`."""
        return self.issue(tier, instance_id, valid=valid).save(folder, name, self)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The certificate of one process, with its key."""

    identity: PeerIdentity
    certificate_pem: bytes
    key_pem: bytes

    def save(self, folder: Path, name: str, authority: Authority) -> CertificatePaths:
        """Write the certificate, its key and the certificate of the authority."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = CertificatePaths(folder / f"{name}.pem", folder / f"{name}.key", folder / CA_FILE)
        write_private(paths.key, self.key_pem)
        write_public(paths.certificate, self.certificate_pem)
        write_public(paths.authorities, authority.certificate_pem)
        return paths


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """What `penstock certs show` prints of one certificate."""

    identity: str
    dns_names: tuple[str, ...]
    issuer: str
    valid_from: datetime
    valid_until: datetime

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError if the file holds no certificate."""
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            message = f"{path} holds no certificate in PEM: {error}"
            raise ConfigError(message) from error
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = x509.SubjectAlternativeName([])
        return cls(
            ", ".join(names.get_values_for_type(x509.UniformResourceIdentifier)),
            tuple(names.get_values_for_type(x509.DNSName)),
            certificate.issuer.rfc4514_string(),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )


def write_private(path: Path, text: bytes) -> None:
    """Write a file that only this user can read. Readers see the former or the new content, never a part."""
    _replace(path, text, 0o600)


def write_public(path: Path, text: bytes) -> None:
    _replace(path, text, 0o644)


def _replace(path: Path, text: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(text)
    temporary.replace(path)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: CertificatePublicKeyTypes,
    valid: timedelta,
    starts_at: datetime | None = None,
) -> x509.CertificateBuilder:
    start = starts_at or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_SKEW)
        .not_valid_after(start + valid)
    )


def _names_of(identity: PeerIdentity, dns_names: tuple[str, ...]) -> x509.SubjectAlternativeName:
    names = [x509.DNSName(name) for name in (*identity.dns_names, *dns_names)]
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *names])


_BOTH_ENDS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


__all__ = ["Authority", "CertificateSummary", "IdentityInvalid", "Leaf", "write_private", "write_public"]
