"""From what a store holds to a desk that goes on where the process before left off."""

from penstock.auth.accounts import Accounts
from penstock.auth.config import AuthConfig
from penstock.auth.desk import Desk
from penstock.auth.edges import Edges
from penstock.auth.keys import Key, KeyRing, key_id_of
from penstock.auth.secret_file import secret_beside
from penstock.auth.store import Books
from penstock.auth.tenant import DEFAULT_TENANT

STANDSTILL = 1.0  # s without a sweep, after which an auth that goes on knows that nobody could have come


def open_desk(config: AuthConfig, books: Books, now: float) -> Desk:
    """Tenants, keys and reservations as stored, and the dev key, which never is."""
    pepper = config.pepper.encode() or secret_beside(config.store, "pepper")
    mesh_secret = config.mesh_secret.encode() or secret_beside(config.store, "mesh-secret")
    accounts = Accounts(ttl=config.reservation_ttl)
    for tenant in books.tenants:
        accounts.put_tenant(tenant, now, books.balances.get(tenant.tenant_id))
    accounts.restore(books.reservations, books.lost, books.charged)
    keys = KeyRing(pepper)
    for key in books.keys:
        keys.put(key)
    if config.dev_key:
        keys.put(dev_key(config.dev_key, keys, now))
    return Desk(keys, accounts, mesh_secret, config.grace_share, config.grace_tokens)


def dev_key(bearer: str, keys: KeyRing, now: float) -> Key:
    return Key(
        key_id=key_id_of(bearer),
        tenant_id=DEFAULT_TENANT,
        digest=keys.digest(bearer),
        created_at=now,
        display_name="development",
        loopback_only=True,
    )


def expected_edges(config: AuthConfig, desk: Desk, now: float, standstill: float = STANDSTILL) -> Edges:
    """The edges that held reservations when the process before ended have one grace to come back."""
    edges = Edges(grace=config.edge_grace, step=standstill)
    for edge_id in desk.accounts.edges:
        edges.expect(edge_id, now)
    return edges
