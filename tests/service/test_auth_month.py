"""A compressed month of auth over real servers: keys are rotated, tenants come and go, models and auth are replaced.

The month has a virtual clock, three requests per tenant and day, and the ledger keeps three days of rows. One tenant
stays for the month and sends so many requests that its totals exceed 32 bits.
"""

import random
from collections import Counter
from datetime import UTC, datetime

from auth_server import START_UNIX_S, FakeClock, auth_process, edge, rejection_of, tenant_use
from penstock.auth import service as auth_service
from penstock.auth.store import threaded
from penstock.mesh.limits.bounds import TOKENS
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb

DAYS, DAY_S, RESTART_EVERY_DAYS = 30, 86_400.0, 7
MAX_UINT32 = 2**32 - 1
REQUESTS_PER_DAY, LARGE_REQUESTS_PER_DAY = 3, 15
LARGE = "large"  # tenant
MINUTE_LIMIT = 2**39  # tokens; a share of it exceeds the grant that a frame can carry


class Month:
    """Drives auth through its days, and counts what it must have charged."""

    def __init__(self, path):
        self.path = path
        self.clock = FakeClock(START_UNIX_S)
        self.rng = random.Random(11)
        self.keys = {}  # the present key by tenant
        self.retired = []  # credentials of rotated keys and deleted tenants
        self.usage = Counter()  # by day, tenant, key, model, and column
        self.totals = Counter()  # by tenant and column, since the tenant was created
        self.number = 0

    @property
    def day(self):
        return datetime.fromtimestamp(self.clock(), UTC).date().isoformat()

    async def live(self):
        for first in range(0, DAYS, RESTART_EVERY_DAYS):
            process = auth_process(self.path, clock=self.clock, ledger_retention=3 * DAY_S, ledger_max_rows=20_000)
            async with process as found, edge(found, f"edge-{first}") as stream:
                for day in range(first, min(first + RESTART_EVERY_DAYS, DAYS)):
                    await self.administer(found, day)
                    await self.serve(found, stream, day)
                    self.clock.now += DAY_S
                await self.check(found, stream)

    async def administer(self, found, day):
        """Create a tenant a day, delete one that is ten days old, and rotate every key every five days."""
        await self.create_tenant(found, f"tenant-{day}")
        if day == 0:
            await self.create_tenant(found, LARGE)
        if day >= 10:
            await found.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id=f"tenant-{day - 10}"))
            self.retired.append(self.keys.pop(f"tenant-{day - 10}"))
        if day % 5 == 0:
            for tenant_id, (key_id, credential) in list(self.keys.items()):
                await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key_id))
                self.retired.append((key_id, credential))
                await self.create_key(found, tenant_id)

    async def create_tenant(self, found, tenant_id):
        tenant = pb.Tenant(tenant_id=tenant_id, tokens_per_minute=MINUTE_LIMIT)
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        await self.create_key(found, tenant_id)

    async def create_key(self, found, tenant_id):
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id=tenant_id))
        self.keys[tenant_id] = made.key.key_id, Credential(bearer=made.secret)

    async def serve(self, found, stream, day):
        model = f"model-{day // 6}"
        for tenant_id, (key_id, credential) in self.keys.items():
            for _ in range(LARGE_REQUESTS_PER_DAY if tenant_id == LARGE else REQUESTS_PER_DAY):
                self.number += 1
                prompt, output = self.rng.randrange(TOKENS // 2, TOKENS), self.rng.randrange(TOKENS)
                request_id = f"request-{self.number}"
                admitted = await stream.reserve(request_id, prompt, output, model, credential=credential)
                assert admitted.fallback_tokens == MAX_UINT32
                await stream.settle(admitted.reservation_id, prompt, output)
                for column, amount in (("requests", 1), ("prompt_tokens", prompt), ("output_tokens", output)):
                    self.usage[self.day, tenant_id, key_id, model, column] += amount
                    self.totals[tenant_id, column] += amount
            self.clock.now += 60.0

    async def check(self, found, stream):
        for tenant_id in self.keys:
            use = await tenant_use(found, tenant_id)
            assert (use.concurrent_requests, use.reserved_tokens) == (0, 0)
            for column in ("requests", "prompt_tokens", "output_tokens"):
                assert getattr(use, column) == self.totals[tenant_id, column]
        for _, credential in self.retired:
            rejected = rejection_of(await stream.reserve("late", credential=credential))
            assert rejected.reason in {"KEY_REVOKED", "KEY_UNKNOWN"}


def stored_usage(stored):
    rows = stored.rows("SELECT day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens FROM usage")
    columns = ("requests", "prompt_tokens", "output_tokens")
    return Counter({(*row[:4], column): row[4 + place] for row in rows for place, column in enumerate(columns)})


def stored_counts(stored):
    tables = ("ledger", "reservations", "balances", "keys")
    return {each: stored.rows(f"SELECT count(*) FROM {each}")[0][0] for each in tables}


async def test_a_month_of_rotated_keys_and_models_is_charged_exactly(stored, monkeypatch):
    monkeypatch.setattr(threaded, "IDLE_INTERVAL_S", 0.01)
    monkeypatch.setattr(threaded, "SLICE_INTERVAL_S", 0.0)
    monkeypatch.setattr(auth_service, "CONFIRMATION_DELAY_S", 0.0)
    monkeypatch.setattr(threaded, "MAX_CHARGE_DELAY_S", 0.0)
    month = Month(stored.location)
    await month.live()
    assert stored_usage(stored) == month.usage
    assert max(month.totals.values()) > 2**32
    assert len(month.retired) > 50
    counts = stored_counts(stored)
    assert counts["reservations"] == 0
    assert counts["ledger"] < month.number / 3
    assert counts["balances"] == len(month.keys)
    assert counts["keys"] <= 3 * len(month.keys)
