"""Identities for tests: the right ones of a mesh, and those that every process must refuse."""

import importlib
import pkgutil
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import penstock.mesh.v1
import penstock.v1
from penstock.certificates.authority import Authority, Leaf
from penstock.chassis.channels import CHANNEL_OPTIONS
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.security.certificates import CertificateFiles, CertificatePaths
from penstock.chassis.security.identity import server_name
from penstock.chassis.security.process import ProcessSecurity

TIMEOUT_S = 20.0
CALLERS = {"expired", "other authority", "other trust domain", "no identity", "no certificate", "plaintext"}


@dataclass
class Rpc:
    """One RPC, callable with raw bytes over any channel."""

    path: str  # package.Service/Name
    client_streaming: bool
    server_streaming: bool

    async def refusal(self, channel, *messages: bytes):
        """Call it. Return status and reason of its failure, or None if it answers or stays open after `messages`."""
        kind = f"{'stream' if self.client_streaming else 'unary'}_{'stream' if self.server_streaming else 'unary'}"
        method = getattr(channel, kind)(f"/{self.path}")
        try:
            if self.client_streaming:
                call = method(timeout=TIMEOUT_S)
                with suppress(Exception):  # the types for a call that has ended differ; its status is read below
                    for each in messages:
                        await call.write(each)
                    await call.done_writing()
            else:
                call = method(messages[0] if messages else b"", timeout=TIMEOUT_S)
            if self.server_streaming:
                await call.read()
            code = await call.code() if not self.server_streaming or self.client_streaming else None
            call.cancel()
            return None if code in (None, grpc.StatusCode.OK) else await _failure(call)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error_from_rpc(error).reason
        except grpc.aio.UsageError:
            return await _failure(call)


async def _failure(call):
    leading, trailing = await call.initial_metadata(), await call.trailing_metadata()
    error = grpc.aio.AioRpcError(await call.code(), leading, trailing, await call.details())
    return error.code().name, error_from_rpc(error).reason


def rpcs_of(*packages) -> list[Rpc]:
    """Return every RPC of the services in `packages`, from their descriptors."""
    names = [
        f"{package.__name__}.{each.name}" for package in packages for each in pkgutil.iter_modules(package.__path__)
    ]
    files = [importlib.import_module(name).DESCRIPTOR for name in names if name.endswith("_pb2")]
    methods = [method for file in files for service in file.services_by_name.values() for method in service.methods]
    return [
        Rpc(f"{each.containing_service.full_name}/{each.name}", each.client_streaming, each.server_streaming)
        for each in methods
    ]


OUR_RPCS = rpcs_of(penstock.mesh.v1, penstock.v1)


@dataclass
class Identities:
    """Issues certificates of one authority into a folder."""

    folder: Path
    authority: Authority

    @classmethod
    def create(cls, folder: Path):
        return cls(folder, Authority.create())

    def issue(self, tier: str, instance: str = "", authority: Authority | None = None, **options) -> CertificatePaths:
        """Issue a certificate. Peers trust the authority of these identities, whoever signed the certificate."""
        leaf = (authority or self.authority).issue(tier, instance or f"{tier}-1", **options)
        return leaf.save(self.folder, f"{tier}-{instance}", self.authority)

    def security(self, tier: str, instance: str = "") -> ProcessSecurity:
        return ProcessSecurity(certificates=CertificateFiles(self.issue(tier, instance)))

    def channel(self, address: str, server: str, tier: str, instance: str = ""):
        """Open a channel of a process of `tier` to the server with the name of `server`, a tier or instance.tier."""
        return _channel(address, server, self.authority, self.authority.issue(tier, instance or f"{tier}-1"))

    @asynccontextmanager
    async def bad_callers(self, address: str, server: str, tier: str):
        """Yield channels to `server` by what is wrong with the caller, which is of `tier` otherwise."""
        day = timedelta(days=1)
        yesterday, instance = datetime.now(UTC) - day, f"{tier}-1"
        leaves = {
            "expired": self.authority.issue(tier, instance, valid=timedelta(hours=1), starts_at=yesterday),
            "other authority": Authority.create().issue(tier, instance),
            "other trust domain": replace(self.authority, trust_domain="other.example").issue(tier, instance),
            "no identity": _leaf_without_identity(self.authority),
        }
        channels = {name: _channel(address, server, self.authority, leaf) for name, leaf in leaves.items()}
        channels["no certificate"] = _channel(address, server, self.authority, None)
        channels["plaintext"] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        assert channels.keys() == CALLERS
        try:
            yield channels
        finally:
            for each in channels.values():
                await each.close()


def is_refused(problem: str, refusal) -> bool:
    """Whether a bad caller was refused in the right way: in the handshake, or by the identity in its certificate."""
    if problem == "other trust domain":
        return refusal == ("PERMISSION_DENIED", "TRUST_DOMAIN")
    if problem == "no identity":
        return refusal == ("PERMISSION_DENIED", "PEER_UNIDENTIFIED")
    return refusal == ("UNAVAILABLE", "CONNECTION_LOST")


def _channel(address: str, server: str, authority: Authority, leaf: Leaf | None):
    pair = (leaf.key_pem, leaf.certificate_pem) if leaf else (None, None)
    instance, _, tier = server.rpartition(".")
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", server_name(tier, instance)))
    credentials = grpc.ssl_channel_credentials(authority.certificate_pem, *pair)
    return grpc.aio.secure_channel(address, credentials, options=options)


def _leaf_without_identity(authority: Authority) -> Leaf:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edge")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("edge.penstock.internal")]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    model = authority.issue("edge", "edge-1")
    encodings = importlib.import_module("cryptography.hazmat.primitives.serialization")
    pem = key.private_bytes(encodings.Encoding.PEM, encodings.PrivateFormat.PKCS8, encodings.NoEncryption())
    return Leaf(model.identity, certificate.public_bytes(encodings.Encoding.PEM), pem)
