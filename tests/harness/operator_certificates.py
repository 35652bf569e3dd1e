"""A certificate authority for tests of mutual TLS, and channels with its certificates."""

import datetime as dt

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.chassis.channels import CHANNEL_OPTIONS

START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
END = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


class Authority:
    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self._root = _pem(builder.sign(self._key, hashes.SHA256()))

    def server_credentials(self, tier):
        key, certificate = self._leaf(tier, f"{tier}-1")
        return grpc.ssl_server_credentials([(key, certificate)], self._root, require_client_auth=True)

    def channel(self, target, tier, name, server_tier="queue"):
        """A channel with the certificate of `tier` and `name`."""
        credentials = grpc.ssl_channel_credentials(self._root, *self._leaf(tier, name))
        name = ("grpc.ssl_target_name_override", f"{server_tier}.penstock.internal")
        return grpc.aio.secure_channel(target, credentials, options=[*CHANNEL_OPTIONS, name])

    def _leaf(self, tier, name):
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.UniformResourceIdentifier(f"spiffe://penstock.local/penstock/{tier}/{name}"),
            x509.DNSName(f"{tier}.penstock.internal"),
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key).add_extension(x509.SubjectAlternativeName(names), critical=False)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return key.private_bytes(*pem), _pem(builder.sign(self._key, hashes.SHA256()))

    def _builder(self, subject, key):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(START)
            .not_valid_after(END)
        )


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)
