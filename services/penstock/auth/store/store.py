"""The interface of the store, and the changes that it persists."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.models.routes import Route
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.auth.quota.scope_quota import ScopeUse
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.share import ShareRow
from penstock.auth.store.totals import RegionTotal


class StoreClosed(Exception):
    """A change was written after the store was closed or its thread failed."""


class StoreThreadFailed(Exception):
    """The store's thread ended with an error that is none of its database, so that no change can be written."""


class ChargesNotPersisted(Exception):
    """The store was closed with charges that could not be written. Edges that hold them repeat them."""


class PartitionsLost(Exception):
    """A change was not written because other replicas own the partitions of its batch that are named."""

    def __init__(self, partitions: frozenset[int]) -> None:
        super().__init__(f"another replica owns {len(partitions)} of the partitions")
        self.partitions = partitions


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


class PutRoute(NamedTuple):
    """A route was created or changed."""

    route: Route


class DeleteRoute(NamedTuple):
    """A route was deleted."""

    name: str
    tenant_id: str


class PutHome(NamedTuple):
    """The catalog is that of a home region from now on."""

    home: str  # empty: that of this region itself


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


class PutShare(NamedTuple):
    """The share of a region of one scope was set."""

    row: ShareRow
    balance: Balance  # of the tenant after the change
    scope_uses: tuple[ScopeUse, ...] = ()  # after the change, of the scope


class PutTotals(NamedTuple):
    """Another region has reported totals. Each replaces one of the same region with a lower revision.

    Totals of hours before `insert_from` are not added, because those hours may have become days.
    """

    region: str
    totals: tuple[RegionTotal, ...]
    insert_from: int  # Unix time in s


class ConfirmTotals(NamedTuple):
    """The home region has stored totals of this region. Those that have changed since then stay unreported."""

    region: str
    totals: tuple[RegionTotal, ...]


class Release(NamedTuple):
    """Partitions are given away, or were lost. All changes of their tenants come before it."""

    partitions: frozenset[int]


class Barrier(NamedTuple):
    """An empty change; it completes when all changes before it have completed.

    With a partition, it fails with PartitionsLost unless this process still owns it. A former owner must not confirm
    what it does not know.
    """

    partition: int | None = None


Administration = (
    PutTenant | PutKey | DeleteKey | DeleteTenant | PutPrice | DeletePrice | PutRoute | DeleteRoute | PutHome
)
Reported = PutTotals | ConfirmTotals
Change = Administration | Reported | Reserved | Charged | PutShare | Release | Barrier
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
    routes: Sequence[Route] = ()
    home: str = ""  # region whose catalog this is; empty: that of this region itself
    shares: Sequence[ShareRow] = ()

    @property
    def uses_by_tenant(self) -> dict[str, list[ScopeUse]]:
        found: dict[str, list[ScopeUse]] = {}
        for each in self.scope_uses:
            found.setdefault(each.tenant_id, []).append(each)
        return found


class Taken(NamedTuple):
    """This process has become the owner of partitions, whose state it has read."""

    epochs: Mapping[int, int]  # by partition
    state: StoredState


class Giving(NamedTuple):
    """This process must write `Release` for these partitions, and admit their tenants no more."""

    partitions: frozenset[int]


class Lost(NamedTuple):
    """Another replica has taken over partitions. This process must write `Release` before it takes them again."""

    partitions: frozenset[int]


class CatalogChanged(NamedTuple):
    """Another process has changed tenants, keys, prices or routes; these are all of them."""

    tenants: list[Tenant]
    keys: list[Key]
    prices: Sequence[Price] = ()
    routes: Sequence[Route] = ()


class HandedOver(NamedTuple):
    """A draining process has given away all that others take."""


StoreEvent = Taken | Giving | Lost | CatalogChanged | HandedOver
OnEvent = Callable[[StoreEvent], None]


class TenantUse(NamedTuple):
    """The use of a tenant as it is stored."""

    tenant_id: str
    concurrent_requests: int
    reserved_tokens: int
    prompt_tokens: int
    output_tokens: int
    requests: int
    scope_use: ScopeUse | None = None  # None: it has no limits or budgets that a scope counts


class Store(Protocol):
    """Persists changes in the order in which they are written.

    `on_persisted` is called on the event loop once the change survives the death of this process, or with the error if
    it could not be written. A promise to a peer is sent in `on_persisted`. A `Charged` is retried until it is written,
    because what was spent does not become unspent by a full disk.
    """

    @property
    def is_available(self) -> bool:
        """Whether the latest commit succeeded."""

    @property
    def clock_offset(self) -> float:
        """Seconds by which the clock that all processes share was ahead of this process's clock at the start.

        With it, a limit per minute is the same at the next owner of its tenant.
        """

    @property
    def epochs(self) -> Mapping[int, int] | None:
        """The partitions that this process owned at the start, with their epochs. None: it alone uses the store."""

    def notify_events(self, on_event: OnEvent) -> None:
        """Call `on_event` on the event loop for each event since the start, in the order of the changes around it."""

    def owner_address(self, partition: int) -> str:
        """Return the address of the process that owns a partition; empty if it is unknown."""

    async def read_uses(self) -> list[TenantUse]:
        """Return the use of all tenants, as it is stored. Raises StoreUnusable."""

    def count_edges(self, edges: int) -> None:
        """This number of edges is connected. A process takes partitions of others once it has as many as they."""

    async def hand_over(self) -> None:
        """Give all partitions to other replicas, if there are any, and wait until that is done."""

    def notify_availability(self, on_change: OnAvailability) -> None:
        """Call `on_change` from now on before the changes of the first commit that fails or succeeds again complete."""

    def write(self, change: Change, on_persisted: OnPersisted) -> None: ...

    async def flush(self) -> None:
        """Wait until all earlier changes are persisted or have failed."""

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
