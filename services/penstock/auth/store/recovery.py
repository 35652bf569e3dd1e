"""From what a store holds to a desk that goes on where the process before left off."""

from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.identity.keys import Key, KeyRing, key_id_of
from penstock.auth.identity.tenant import DEFAULT_TENANT
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.store.secret_file import load_or_create_secret
from penstock.auth.store.store import StoredState

STALL_THRESHOLD_S = 1.0  # s without a sweep, after which an auth that goes on knows that nobody could have come


def recover(config: AuthConfig, state: StoredState, now: float) -> Authorizer:
    """Tenants, keys and reservations as stored, and the dev key, which never is."""
    pepper = config.pepper.encode() or load_or_create_secret(config.store, "pepper")
    mesh_secret = config.mesh_secret.encode() or load_or_create_secret(config.store, "mesh-secret")
    accounts = ReservationTable(ttl=config.reservation_ttl)
    for tenant in state.tenants:
        accounts.put_tenant(tenant, now, state.balances.get(tenant.tenant_id))
    accounts.restore(state.reservations, state.lost, state.charged)
    keys = KeyRing(pepper)
    for key in state.keys:
        keys.put(key)
    if config.dev_key:
        keys.put(development_key(config.dev_key, keys, now))
    return Authorizer(keys, accounts, mesh_secret, config.fallback_share, config.fallback_tokens)


def development_key(bearer: str, keys: KeyRing, now: float) -> Key:
    return Key(
        key_id=key_id_of(bearer),
        tenant_id=DEFAULT_TENANT,
        digest=keys.digest(bearer),
        created_at=now,
        display_name="development",
        loopback_only=True,
    )


def edges_to_expect(
    config: AuthConfig, authorizer: Authorizer, now: float, stall_threshold: float = STALL_THRESHOLD_S
) -> EdgeSessions:
    """The edges that held reservations when the process before ended have one grace to come back."""
    edges = EdgeSessions(grace=config.edge_grace, max_gap=stall_threshold)
    for edge_id in authorizer.reservations.edges_with_reservations:
        edges.expect(edge_id, now)
    return edges
