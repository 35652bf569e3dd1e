"""Probation of tenants whose requests crash engines: each further crash delays the tenant's next request for longer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.chassis.errors import Overloaded
from penstock.queue.ticket import QueuedTicket

WINDOW_S = 600.0  # s for which a confirmed request counts
FREE_CONFIRMED = 2  # confirmed requests in the window without probation
FIRST_SUSPENSION_S = 10.0  # s; doubles with each further confirmed request in the window
TRIAL_RETRY_AFTER_S = 1.0  # s, for requests that arrive while another one is tried
MAX_SUSPECTS = 10_000  # reported requests whose tenants are kept; the oldest are forgotten first
MAX_TENANTS = 1_000  # with confirmed requests; the one whose last is the oldest is forgotten first


class TenantOnProbation(Overloaded):
    """Requests of this tenant crashed engines recently."""

    default_reason = "TENANT_ON_PROBATION"

    def __init__(self, confirmed: int, retry_after: float) -> None:
        text = (
            f"{confirmed} requests of this tenant crashed the model's engine in the last {WINDOW_S / 60:.0f} minutes, "
            f"so its requests run one at a time; retry in {retry_after:.0f} s"
        )
        super().__init__(text, retry_after=retry_after)


@dataclass(slots=True)
class TenantRecord:
    """Confirmed requests of one tenant."""

    confirmed_at: dict[int, float] = field(default_factory=dict)  # by fingerprint, oldest first
    trial: str = ""  # the ticket that runs alone

    def prune(self, now: float) -> None:
        while self.confirmed_at and next(iter(self.confirmed_at.values())) + WINDOW_S <= now:
            del self.confirmed_at[next(iter(self.confirmed_at))]

    @property
    def suspended_until(self) -> float:
        """Time until which no request of the tenant runs; in the past if it is not suspended."""
        extra = len(self.confirmed_at) - FREE_CONFIRMED
        if extra <= 0:
            return 0.0
        last = next(reversed(self.confirmed_at.values()))
        return last + min(WINDOW_S, FIRST_SUSPENSION_S * 2.0 ** (extra - 1))


@dataclass(slots=True)
class TenantProbation:
    """Bounds the engines that one tenant can crash with ever new requests.

    A confirmed request costs two engines. After `FREE_CONFIRMED` of them within `WINDOW_S`, the tenant is suspended,
    for twice as long each time, and then its requests are admitted one at a time until the window has passed. Tickets
    that a shard has admitted before are not rejected again. Other tenants are not affected.
    """

    _records: dict[str, TenantRecord] = field(default_factory=dict)  # by tenant, by their last confirmed request
    _tenants: dict[int, str] = field(default_factory=dict)  # of reported requests, by fingerprint

    def on_reports(self, changes: Mapping[int, bool], now: float) -> frozenset[str]:
        """Record reports that changed: whether each fingerprint is confirmed. Return the tenants that are suspended.

        The tenants of requests that are not known yet follow by `on_tenant_found`.
        """
        for record in self._records.values():
            record.prune(now)
        self._records = {tenant: record for tenant, record in self._records.items() if record.confirmed_at}
        convicted = {self._record(key, now) for key, is_confirmed in changes.items() if is_confirmed}
        return self._suspended_of(convicted, now)

    def on_tenant_found(self, fingerprint: int, tenant: str, now: float, *, is_confirmed: bool) -> frozenset[str]:
        """Record the tenant of a reported request. Return it if it is suspended by this."""
        self._tenants[fingerprint] = tenant
        while len(self._tenants) > MAX_SUSPECTS:
            del self._tenants[next(iter(self._tenants))]
        return self._suspended_of({self._record(fingerprint, now)} if is_confirmed else (), now)

    def _suspended_of(self, tenants: Iterable[str], now: float) -> frozenset[str]:
        return frozenset(
            each for each in tenants if (record := self._records.get(each)) and record.suspended_until > now
        )

    def rejection(self, ticket: QueuedTicket, now: float, is_active: Callable[[str], bool]) -> TenantOnProbation | None:
        """Return the error of a new ticket; None if it may be admitted. `is_active`: whether a ticket waits or runs."""
        record = self._records.get(ticket.tenant_id)
        if record is None or ticket.is_readmitted or ticket.is_resumed:
            return None
        record.prune(now)
        confirmed = len(record.confirmed_at)
        if confirmed <= FREE_CONFIRMED:
            return None
        if (left := record.suspended_until - now) > 0:
            return TenantOnProbation(confirmed, left)
        if record.trial not in ("", ticket.ticket_id) and is_active(record.trial):
            return TenantOnProbation(confirmed, TRIAL_RETRY_AFTER_S)
        return None

    def on_admitted(self, ticket: QueuedTicket) -> None:
        if record := self._records.get(ticket.tenant_id):
            record.trial = ticket.ticket_id

    def suspension(self, tenant_id: str, now: float) -> TenantOnProbation | None:
        """Return the error of the waiting tickets of a tenant; None if it is not suspended."""
        record = self._records.get(tenant_id)
        if record is None or record.suspended_until <= now:
            return None
        return TenantOnProbation(len(record.confirmed_at), record.suspended_until - now)

    def _record(self, fingerprint: int, now: float) -> str:
        """Count a confirmed request once, and return its tenant; empty if it is unknown."""
        tenant = self._tenants.get(fingerprint, "")
        if not tenant:
            return ""
        record = self._records.pop(tenant, None) or TenantRecord()
        record.confirmed_at.setdefault(fingerprint, now)
        self._records[tenant] = record
        if len(self._records) > MAX_TENANTS:
            del self._records[next(iter(self._records))]
        return tenant
