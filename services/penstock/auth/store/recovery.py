"""Recovery: the authorizer and the edge sessions from the state of the store at the start."""

from collections.abc import Mapping

from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.identity.authenticator import Authenticator, FailureLimits
from penstock.auth.identity.delegation import DelegationIssuer
from penstock.auth.identity.keys import Key, KeyRing, key_id_of
from penstock.auth.identity.tenant import DEFAULT_TENANT
from penstock.auth.partitions.owned import ServedPartitions
from penstock.auth.quota.grant import GrantIssuer
from penstock.auth.quota.grant_uses import GrantUses
from penstock.auth.quota.prices import PriceList
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import ShareOf
from penstock.auth.store.secret_file import load_or_create_secret
from penstock.auth.store.store import StoredState

STALL_THRESHOLD_S = 1.0  # s between sweeps; a longer gap means that this process stalled and no edge could connect


def recover(
    config: AuthConfig,
    state: StoredState,
    now: float,
    epochs: Mapping[int, int] | None = None,
    shares: GrantedShares | HeldShares | None = None,
) -> Authorizer:
    """Return an authorizer with the stored tenants, keys and reservations, and the development key of the settings.

    `epochs` of the partitions whose state it is; None: it is that of all. `shares` of limits; None: limits are whole.
    """
    if shares:
        shares.restore(state.shares)
    pepper = config.pepper.encode() or _secret(config, state, "pepper")
    mesh_secret = config.mesh_secret.encode() or _secret(config, state, "mesh-secret")
    reservations = _reservations(config, state, now, shares)
    keys = KeyRing(pepper)
    for key in state.keys:
        keys.put(key)
    if config.dev_key:
        keys.put(development_key(config.dev_key, keys, now))
    uses = GrantUses(reservations.is_lost)
    uses.restore(state.grant_uses)
    failure_limits = FailureLimits(config.failures_per_source, config.failures_per_edge)
    authorizer = Authorizer(
        keys,
        Authenticator(keys, DelegationIssuer(pepper), failure_limits),
        reservations,
        GrantIssuer(pepper, config.fallback_grant_ttl),
        uses,
        mesh_secret,
        config.fallback_share,
        config.fallback_tokens,
        accept_ungranted_fallback=config.accept_ungranted_fallback,
        served=ServedPartitions(epochs),
        region=config.region,
        shares=shares,
    )
    authorizer.residency.replace(state.tenants)
    return authorizer


def _share_of(shares: GrantedShares | HeldShares | None) -> ShareOf | None:
    if shares is None:
        return None
    return shares.own if isinstance(shares, GrantedShares) else shares.of


def _reservations(
    config: AuthConfig, state: StoredState, now: float, shares: GrantedShares | HeldShares | None
) -> ReservationTable:
    reservations = ReservationTable(
        ttl=config.reservation_ttl,
        prices=PriceList(state.prices, batch_percent=config.batch_price_percent),
        region=config.region,
        share_of=_share_of(shares),
        largest=shares.largest if shares else None,
    )
    uses = state.uses_by_tenant
    for tenant in state.tenants:
        balance = state.balances.get(tenant.tenant_id)
        reservations.put_tenant(tenant, now, balance, uses.get(tenant.tenant_id, ()))
    for key in state.keys:
        if quota := reservations.quota(key.tenant_id):
            quota.set_key(key.key_id, key.policy, now)
    reservations.restore(state.reservations, state.lost, state.charged)
    return reservations


def _secret(config: AuthConfig, state: StoredState, name: str) -> bytes:
    """Return a secret of the store: of its database, or of a file beside it."""
    return state.secrets.get(name) or load_or_create_secret(config.store_location.path, name)


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
    """Return edge sessions that expect the edges with reservations to reconnect within the grace period."""
    edges = EdgeSessions(grace=config.edge_grace, max_gap=stall_threshold)
    for edge_id in authorizer.reservations.edges_with_reservations:
        edges.expect(edge_id, now)
    return edges
