"""Certificates of an attacker: of a foreign authority, expired ones, and those of other processes of the mesh.

`penstock up` keeps the certificates of a mesh in the folder `certs`: `ca.pem`, and `NAME.pem` and `NAME.key` of each
process. Without that folder the mesh is in plaintext, and an attacker has a foreign authority alone.
"""

import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

CERTIFICATES_FOLDER = "certs"
AUTHORITY_KEYS = ("ca.key", "ca-key.pem")  # of the mesh, if it keeps one
DEFAULT_TRUST_DOMAIN = "penstock.local"
FOREIGN_TRUST_DOMAIN = "attacker.example"
VALID_FOR = timedelta(hours=1)
SPIFFE_SCHEME = "spiffe://"
SPIFFE_PARTS = 4  # trust domain, "penstock", tier, instance


class Credentials(StrEnum):
    """What an attacker presents to a port of the mesh."""

    PLAINTEXT = "plaintext"
    NO_CERTIFICATE = "TLS without a certificate"
    FOREIGN = "foreign authority"
    OTHER_DOMAIN = "other trust domain"
    EXPIRED = "expired certificate"
    WRONG_TIER = "certificate of another tier"
    RIGHT = "certificate of the tier"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One certificate with its key, and the process that it names."""

    tier: str
    instance_id: str
    certificate: Path
    key: Path

    def to_json(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, found: Mapping[str, str]) -> Self:
        return cls(found["tier"], found["instance_id"], Path(found["certificate"]), Path(found["key"]))


def client_context(leaf: Leaf | None = None) -> ssl.SSLContext:
    """Return a TLS client that verifies nothing: an attacker talks to any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if leaf:
        context.load_cert_chain(leaf.certificate, leaf.key)
    return context


def mesh_leaves(folder: Path) -> dict[str, Leaf]:
    """Return the certificates of a mesh by tier, the first of each; empty for a mesh in plaintext."""
    leaves: dict[str, Leaf] = {}
    for certificate in sorted((folder / CERTIFICATES_FOLDER).glob("*.pem")):
        key = certificate.with_suffix(".key")
        if certificate.stem != "ca" and key.exists() and (names := spiffe_names(certificate)):
            leaves.setdefault(names.tier, Leaf(names.tier, names.instance_id, certificate, key))
    return leaves


class SpiffeNames(NamedTuple):
    trust_domain: str
    tier: str
    instance_id: str


def spiffe_names(certificate: Path) -> SpiffeNames | None:
    """Return the names in the URI of a certificate; None if it has none of a mesh."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        parts = uri.removeprefix(SPIFFE_SCHEME).split("/")
        if uri.startswith(SPIFFE_SCHEME) and len(parts) == SPIFFE_PARTS:
            return SpiffeNames(parts[0], parts[2], parts[3])
    return None


class Authority:
    """A certificate authority of the attacker, or the mesh's own if its key is at hand."""

    def __init__(self, folder: Path, *, key: Path | None = None, certificate: Path | None = None) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder = folder
        self._key: Any = (
            serialization.load_pem_private_key(key.read_bytes(), None)
            if key
            else ec.generate_private_key(ec.SECP256R1())
        )
        self._subject = _subject_of(certificate) if certificate else _named("hostile authority")

    def issue(
        self, tier: str, instance_id: str, *, domain: str = DEFAULT_TRUST_DOMAIN, age: timedelta | None = None
    ) -> Leaf:
        """Write a certificate for a process; one with an `age` above the time of its validity has expired."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key, begins_at = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC) - (age or timedelta(minutes=1))
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{SPIFFE_SCHEME}{domain}/penstock/{tier}/{instance_id}"),
            x509.DNSName(f"{tier}.penstock.internal"),
            x509.DNSName(f"{instance_id}.{tier}.penstock.internal"),
        ]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(instance_id))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins_at)
            .not_valid_after(begins_at + VALID_FOR)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._folder / f"{tier}-{instance_id}-{len(list(self._folder.glob('*.pem')))}"
        return _write(stem, tier, instance_id, certificate, key)


def _write(stem: Path, tier: str, instance_id: str, certificate: Any, key: Any) -> Leaf:
    from cryptography.hazmat.primitives import serialization

    leaf = Leaf(tier, instance_id, stem.with_suffix(".pem"), stem.with_suffix(".key"))
    leaf.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    leaf.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return leaf


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _subject_of(certificate: Path) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.read_bytes()).subject


def mesh_authority(mesh_folder: Path, own_folder: Path) -> Authority | None:
    """Return the mesh's own authority; None if its key is not kept."""
    folder = mesh_folder / CERTIFICATES_FOLDER
    key = next((each for name in AUTHORITY_KEYS if (each := folder / name).exists()), None)
    return Authority(own_folder, key=key, certificate=folder / "ca.pem") if key else None


def identities(
    tier: str, leaves: Mapping[str, Leaf], foreign: Authority, own: Authority | None
) -> dict[Credentials, Leaf | None]:
    """Return the credentials with which an attacker can approach a port that serves `tier`.

    Those of the mesh's own authority are left out if the mesh has none, or does not keep its key.
    """
    names = spiffe_names(leaves[tier].certificate) if tier in leaves else None
    domain, _, instance_id = names or SpiffeNames(DEFAULT_TRUST_DOMAIN, tier, f"{tier}-1")
    found: dict[Credentials, Leaf | None] = {
        Credentials.PLAINTEXT: None,
        Credentials.NO_CERTIFICATE: None,
        Credentials.FOREIGN: foreign.issue(tier, instance_id, domain=domain),
        Credentials.OTHER_DOMAIN: (own or foreign).issue(tier, instance_id, domain=FOREIGN_TRUST_DOMAIN),
    }
    if own:
        found[Credentials.EXPIRED] = own.issue(tier, instance_id, domain=domain, age=2 * VALID_FOR)
    if other := next((leaf for name, leaf in leaves.items() if name != tier), None):
        found[Credentials.WRONG_TIER] = other
    if tier in leaves:
        found[Credentials.RIGHT] = leaves[tier]
    return found
