"""Settings of auth."""

from dataclasses import dataclass

from penstock.auth.identity.keys import key_id_of
from penstock.chassis.config import ServiceConfig, fleet, secret


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthConfig(ServiceConfig):
    listen: str = "127.0.0.1:7002"
    drain_grace: float = 5.0  # s; edges leave at once when told, and settle with the process that comes after
    store: str = ":memory:"  # SQLite file; in memory, keys and the ledger end with the process
    fsync: bool = False  # whether a promise survives the loss of power too; costs each commit a disk's flush
    pepper: str = secret()  # keys are hashed with it; empty: made once, kept in <store>.pepper
    mesh_secret: str = fleet("PENSTOCK_MESH_SECRET", secret=True)  # salts derive from it; empty: in <store>.mesh-secret
    dev_key: str = secret()  # a key of tenant `default` that works on loopback alone; never stored
    reservation_ttl: float = 90_000.0  # s; longer than the day that a request may take
    edge_grace: float = 30.0  # s; how long an edge may stay away before its reservations are lost
    fallback_share: float = 0.25  # of what a tenant's limits leave, for all edges together while auth is away; 0: none
    fallback_tokens: int = 1_000_000  # for a tenant without such a limit, at each edge

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.dev_key and not key_id_of(self.dev_key):
            raise ValueError("dev_key must look like pk_ID_SECRET with a secret of 22 letters and digits or more")
        if not 0 <= self.fallback_share <= 1:
            raise ValueError("fallback_share must be a share, 0 to 1")
        if not 0 <= self.fallback_tokens < 2**32:
            raise ValueError("fallback_tokens must be 0 to 2**32 - 1")
        for name in ("reservation_ttl", "edge_grace"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0 s")
