"""What has to outlive the process, and the interface to where it is kept."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.auth.quota.tenant_quota import Balance


class PutTenant(NamedTuple):
    tenant: Tenant


class PutKey(NamedTuple):
    key: Key


class Reserved(NamedTuple):
    reservation: Reservation
    balance: Balance  # of the account afterwards


class Charged(NamedTuple):
    charge: Charge
    balance: Balance  # of the account afterwards


class Barrier(NamedTuple):
    """Changes nothing; done when all before it is."""


Change = PutTenant | PutKey | Reserved | Charged | Barrier
OnPersisted = Callable[[Exception | None], None]


class StoredState(NamedTuple):
    """All that a store holds, as a process that starts wants it."""

    tenants: list[Tenant]
    balances: dict[str, Balance]  # by tenant id
    keys: list[Key]
    reservations: list[Reservation]
    lost: list[Reservation]  # whose edges may still come, oldest first
    charged: list[Charge]  # of late, oldest first, lost ones aside: whose answers may go on


class Store(Protocol):
    """Keeps changes in the order they are written.

    `then` is called on the loop once the change would survive the death of this process, or with the error why it
    would not; whoever promises something to a peer does so in `then`. A `Charged` is never given up: it is tried again
    until it is kept, because what was spent does not become unspent by a full disk.
    """

    def write(self, change: Change, on_persisted: OnPersisted) -> None: ...

    async def flush(self) -> None:
        """Return when all that was written so far is kept or has failed."""

    @property
    def pending(self) -> int:
        """Changes that are not done yet."""
