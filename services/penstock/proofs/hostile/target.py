"""The knowledge of an attacker about a mesh: ports, a valid key of a tenant, and made or stolen certificates."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from penstock.local_mesh.mesh import LocalMesh
from penstock.proofs.hostile.certificates import (
    Authority,
    Credentials,
    Leaf,
    client_context,
    identities,
    mesh_authority,
    mesh_leaves,
)
from penstock.proofs.hostile.ports import Port, PortKind, ports_of, ports_of_kinds

INTRUDER = "intruder"  # instance id of a false process
CLIENT_TIERS = ("edge", "scheduler", "worker", "batch", "envoy")  # tiers that open streams to others


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileTarget:
    ports: Sequence[Port]
    api_key: str  # of a tenant that attacks others, or the mesh, with its own requests
    model: str
    leaves: Mapping[str, Leaf] = field(default_factory=dict)  # of the mesh, by tier; empty: the mesh is in plaintext
    identities: Mapping[str, Mapping[Credentials, Leaf | None]] = field(default_factory=dict)  # by client tier

    @property
    def has_tls(self) -> bool:
        return bool(self.leaves)

    def ports_of(self, *kinds: PortKind) -> list[Port]:
        return ports_of_kinds(self.ports, kinds)

    def credentials_of(self, tier: str) -> Iterator[tuple[Credentials, ssl.SSLContext | None, str]]:
        """Yield what a false process of `tier` can present, the TLS client that presents it, and the id in its hello.

        The id is that of the certificate, so that nothing but the certificate is wrong; the right certificate has
        another one.
        """
        for credentials, leaf in self.identities.get(tier, {Credentials.PLAINTEXT: None}).items():
            is_named = leaf is not None and credentials is not Credentials.RIGHT
            instance_id = leaf.instance_id if leaf and is_named else INTRUDER
            yield credentials, None if credentials is Credentials.PLAINTEXT else client_context(leaf), instance_id

    def insider(self, tier: str) -> tuple[ssl.SSLContext | None, str]:
        """Return how a true but hostile process of `tier` connects, and the instance id in its hello."""
        if leaf := self.leaves.get(tier):
            return client_context(leaf), leaf.instance_id
        return None, f"{tier}-hostile"

    def to_json(self) -> dict[str, Any]:
        return {
            "ports": [asdict(port) for port in self.ports],
            "api_key": self.api_key,
            "model": self.model,
            "leaves": {tier: leaf.to_json() for tier, leaf in self.leaves.items()},
            "identities": {
                tier: {name.value: leaf and leaf.to_json() for name, leaf in found.items()}
                for tier, found in self.identities.items()
            },
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        return cls(
            ports=[Port(PortKind(each["kind"]), each["process"], each["address"]) for each in found["ports"]],
            api_key=found["api_key"],
            model=found["model"],
            leaves={tier: Leaf.from_json(each) for tier, each in found["leaves"].items()},
            identities={
                tier: {Credentials(name): each and Leaf.from_json(each) for name, each in identities.items()}
                for tier, identities in found["identities"].items()
            },
        )


@contextmanager
def hostile_target(mesh: LocalMesh) -> Iterator[HostileTarget]:
    """Describe a running mesh. The certificates that the attacker makes exist for the duration of the block."""
    leaves = mesh_leaves(mesh.folder)
    with TemporaryDirectory(prefix="penstock-hostile-") as name:
        folder = Path(name)
        foreign, own = Authority(folder), mesh_authority(mesh.folder, folder)
        yield HostileTarget(
            ports=ports_of(mesh.plan),
            api_key=mesh.api_key,
            model=mesh.options.model,
            leaves=leaves,
            identities={tier: identities(tier, leaves, foreign, own) for tier in CLIENT_TIERS},
        )
