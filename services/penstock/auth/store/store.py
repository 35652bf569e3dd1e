"""The interface of the store, and the changes that it persists."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.auth.quota.scope_quota import ScopeUse
from penstock.auth.quota.tenant_quota import Balance
from penstock.chassis.config import ConfigError


class StoreUnusable(ConfigError):
    """The store cannot be opened or read."""


class StoreTooNew(ConfigError):
    """The store was written by a later release, whose schema this release does not know."""

    @classmethod
    def of(cls, version: int, supported: int) -> "StoreTooNew":
        return cls(f"the store has version {version}, and this release supports up to {supported}; upgrade auth")


class StoreClosed(Exception):
    """A change was written after the store was closed or its thread failed."""


class StoreThreadFailed(Exception):
    """The store's thread ended with an error that is none of its database, so that no change can be written."""


class ChargesNotPersisted(Exception):
    """The store was closed with charges that could not be written. Edges that hold them repeat them."""


class PutTenant(NamedTuple):
    """A tenant was created or changed."""

    tenant: Tenant


class PutKey(NamedTuple):
    """A key was created or revoked."""

    key: Key


class DeleteKey(NamedTuple):
    """A key that ended long ago was deleted."""

    key_id: str


class DeleteTenant(NamedTuple):
    """A tenant without reservations was deleted with its keys. Its rows in the ledger stay."""

    tenant_id: str
    deleted_at: float  # s


class PutPrice(NamedTuple):
    """The price of a model was set."""

    price: Price


class DeletePrice(NamedTuple):
    """The price of a model was deleted."""

    model: str


class Reserved(NamedTuple):
    """A reservation was made."""

    reservation: Reservation
    balance: Balance  # of the tenant after the change
    grant_use: GrantUse | None = None  # of a fallback admission
    scope_uses: tuple[ScopeUse, ...] = ()  # after the change, of the scopes that count the reservation


class Charged(NamedTuple):
    """A reservation was settled."""

    charge: Charge
    balance: Balance  # of the tenant after the change
    grant_use: GrantUse | None = None  # of a fallback admission
    scope_uses: tuple[ScopeUse, ...] = ()  # after the change, of the scopes that count the reservation


class Barrier(NamedTuple):
    """An empty change; it completes when all changes before it have completed."""


Change = PutTenant | PutKey | DeleteKey | DeleteTenant | PutPrice | DeletePrice | Reserved | Charged | Barrier
OnPersisted = Callable[[Exception | None], None]
OnAvailability = Callable[[bool], None]
PendingChange = tuple[Change, OnPersisted]


class StoredState(NamedTuple):
    """The state that a process reads from the store at its start."""

    tenants: list[Tenant]
    balances: dict[str, Balance]  # by tenant id
    keys: list[Key]
    reservations: list[Reservation]
    lost: list[Reservation]  # lost reservations whose edges may still settle them, oldest first
    grant_uses: list[GrantUse]
    charged: list[Charge]  # recent charges without lost ones, oldest first: their answers may be continued
    secrets: Mapping[str, bytes] = MappingProxyType(
        {}
    )  # by name, of a store that all processes share; none: they are files
    scope_uses: Sequence[ScopeUse] = ()
    prices: Sequence[Price] = ()


class Store(Protocol):
    """Persists changes in the order in which they are written.

    `on_persisted` is called on the event loop once the change survives the death of this process, or with the error if
    it could not be written. A promise to a peer is sent in `on_persisted`. A `Charged` is retried until it is written,
    because what was spent does not become unspent by a full disk.
    """

    @property
    def is_available(self) -> bool:
        """Whether the latest commit succeeded."""

    def notify_availability(self, on_change: OnAvailability) -> None:
        """Call `on_change` from now on before the changes of the first commit that fails or succeeds again complete."""

    def write(self, change: Change, on_persisted: OnPersisted) -> None: ...

    async def flush(self) -> None:
        """Wait until all earlier changes are persisted or have failed."""

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
