"""Settlements beside a full ledger: clients reserve and settle in turn, over the store of auth."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psutil
import psycopg

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import Change, Charged, PutTenant, Reserved, Store
from penstock.bench.ledger.rows import LedgerPlan
from penstock.bench.progress import ProgressFn

REPORT_INTERVAL_S = 0.5  # s
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
_IN_ROWS = "SELECT count(*), sum(output_tokens), sum(price_nanos) FROM ledger WHERE edge_id = 'bench'"
_IN_TOTALS = "SELECT sum(requests), sum(output_tokens), sum(price_nanos) FROM hourly_usage WHERE region = 'bench'"


@dataclass(eq=False)
class SettlementLoad:
    """Clients that settle for a time. Afterwards the totals are compared with the rows."""

    url: str
    plan: LedgerPlan
    seconds: float
    clients: int
    settled: int = field(default=0, init=False)

    async def measure(self, report: ProgressFn) -> dict[str, Any]:
        async with opened_store(self.url, instance_id="bench") as (store, _):
            await asyncio.gather(*(_kept(store, PutTenant(Tenant(tenant_id=each))) for each in self._tenants()))
            servers = await asyncio.to_thread(_server_cpu, self.url)
            began, cpu = time.perf_counter(), time.process_time()
            end = began + self.seconds
            async with asyncio.TaskGroup() as group:
                for client in range(self.clients):
                    group.create_task(self._client(store, client, end))
                group.create_task(self._report(report, end))
            took, used = time.perf_counter() - began, time.process_time() - cpu
            server_used = await asyncio.to_thread(_server_cpu, self.url) - servers
        return {
            "settlements": self.settled,
            "settlements_per_s": self.settled / took,
            "cpu_per_settlement_s": used / max(1, self.settled),
            "server_cpu_per_settlement_s": server_used / max(1, self.settled),
            "totals_equal_rows": await asyncio.to_thread(self._is_exact),
        }

    def _tenants(self) -> set[str]:
        return {self.plan.tenant(key) for key in range(self.plan.keys)}

    async def _client(self, store: Store, client: int, end: float) -> None:
        number = client
        while time.perf_counter() < end:
            number += self.clients
            reservation = self._reservation(number)
            balance = Balance(reservation.request.tenant_id)
            await _kept(store, Reserved(reservation, balance))
            charge = Charge(
                reservation=reservation,
                prompt_tokens=reservation.request.prompt_tokens,
                output_tokens=number % 100,
                made_tokens=number % 100,
                outcome="stop" if number % 5 else "cancelled",
                settled_at=time.time(),
                cached_tokens=16,
                price_nanos=1_000 + number,
                worker="worker-1",
                region="bench",
            )
            await _kept(store, Charged(charge, balance))
            self.settled += 1

    def _reservation(self, number: int) -> Reservation:
        key, now = number * 7_919 % self.plan.keys, time.time()
        request = ReservationRequest(
            request_id=uuid4().hex,
            tenant_id=self.plan.tenant(key),
            key_id=f"key{key:05}",
            edge_id="bench",
            model=f"model-{number * 31 % self.plan.models}",
            prompt_tokens=100,
            max_output_tokens=100,
            fingerprint=b"f" * 16,
        )
        reservation_id = f"{int(now * 1_000):012x}{uuid4().hex[12:]}"
        return Reservation(reservation_id=reservation_id, request=request, reserved_at=now, expires_at=now + 9e4)

    async def _report(self, report: ProgressFn, end: float) -> None:
        while (left := end - time.perf_counter()) > 0:
            report(f"settlements: {self.settled:,}, {left:.0f} s left")
            await asyncio.sleep(min(left, REPORT_INTERVAL_S))

    def _is_exact(self) -> bool:
        with closing(psycopg.connect(self.url)) as connection:
            rows, totals = connection.execute(_IN_ROWS).fetchone(), connection.execute(_IN_TOTALS).fetchone()
        return rows == totals and rows is not None and rows[0] == self.settled


async def _kept(store: Store, change: Change) -> None:
    persisted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store.write(change, _ending(persisted))
    await persisted


def _ending(persisted: "asyncio.Future[None]") -> Callable[[Exception | None], None]:
    return lambda error: persisted.set_exception(error) if error else persisted.set_result(None)


def _server_cpu(url: str) -> float:
    """Return the CPU seconds of the server's present sessions; 0 if they run elsewhere."""
    with closing(psycopg.connect(url)) as connection:
        pids = [pid for (pid,) in connection.execute(_BACKENDS)]
    found = 0.0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.name().startswith("postgres"):
                found += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return found
