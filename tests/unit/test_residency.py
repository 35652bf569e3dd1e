"""Residency over regions, changes, outages and calls: the cores of auth and of edges, and frames between them."""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest

from penstock.auth.config import AuthConfig
from penstock.auth.identity.keys import Key
from penstock.auth.identity.policy import Policy
from penstock.auth.identity.residency import Residency as TenantRegions
from penstock.auth.identity.tenant import Tenant
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.chassis.errors import PermissionDenied, Unavailable
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.pending import AuthFallbackLimits
from penstock.edge.auth_fallback.residency import MAX_REPLICAS, Residency
from penstock.mesh.regions import is_region_allowed
from penstock.mesh.v1.admission_pb2 import Admitted, Credential, FallbackAdmission, Identity, Reserve
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED

REGIONS = ("eu", "us", "ap")
TENANTS = tuple(f"tenant-{number}" for number in range(6))
SETS = ((), ("eu",), ("us",), ("eu", "us"), ("ap",), REGIONS)
PROMPTS = 10_000


@dataclass
class Region:
    """Auth and an edge of one region. Frames arrive late and in order; a stream delivers them before it is lost."""

    name: str
    now: float = 0.0
    is_auth_up: bool = True
    frames: list = field(default_factory=list)  # calls of the edge that are on their way
    deferred: list = field(default_factory=list)  # credential, request and key id of prompts accepted without auth

    def __post_init__(self):
        secrets = {"pepper": "p" * 32, "mesh_secret": "m" * 32}
        config = AuthConfig(region=self.name, accept_ungranted_fallback=True, **secrets)
        self.auth = recover(config, StoredState([], {}, [], [], [], [], []), 0.0)
        self.auth.residency.on_changed = self.send_residency
        runner = SimpleNamespace(now=lambda: self.now)
        watch = SimpleNamespace(outage_duration=lambda _: 0.0)
        limits, send = AuthFallbackLimits(identity_ttl=1e9), lambda *_: None
        self.edge = AuthFallback(limits, runner, None, watch, region=self.name, send=send)
        self.send_residency()

    def send_residency(self):
        digest = self.auth.residency.digest
        self.frames.append(lambda: self.edge.on_residency("auth", digest))

    def deliver(self, count=None):
        arriving, self.frames = self.frames[:count], self.frames[len(self.frames) if count is None else count :]
        for apply in arriving:
            apply()

    def put(self, tenant_id, regions):
        self.auth.put_tenant(Tenant(tenant_id=tenant_id, policy=Policy(allowed_regions=regions)), self.now)

    def turn_auth(self, *, up):
        if not up:
            self.deliver()
        elif not self.is_auth_up:
            self.send_residency()
        self.is_auth_up = up

    def record_deferred(self):
        """Send what the edge has accepted without auth; the tenant may have changed since then."""
        while self.deferred and self.is_auth_up:
            credential, request_id, key_id = self.deferred.pop()
            self.reserve(credential, request_id, FallbackAdmission(key_id=key_id))

    def accepts(self, credential, request_id) -> bool:
        """Return whether the edge accepts a prompt, as `AuthClient` decides."""
        try:
            if not self.is_auth_up:
                self.deferred.append((credential, request_id, self.edge.identify(credential).key_id))
                return True
            if self.edge.find_known(credential) is None:
                identity = self.auth.identify(credential, self.now)
                self.frames.append(lambda: self.edge.cache_identified(credential, identity))
            return self.reserve(credential, request_id)
        except PermissionDenied as refusal:
            self.frames.append(partial(self.edge.invalidate_identity, refusal, credential))
            return False
        except Unavailable:  # auth is away, and the edge does not know the caller
            return False

    def reserve(self, credential, request_id, admission=None) -> bool:
        caller = {"fallback_admission": admission} if admission else {"credential": credential}
        frame = Reserve(request_id=request_id, model="m", max_output_tokens=1, **caller)
        identity, _, _ = self.auth.reserve(frame, self.name, request_id, self.now)
        context = SimpleNamespace(credential=credential, spec=SimpleNamespace(priority=PRIORITY_UNSPECIFIED))
        admitted = Admitted(request_id=request_id, identity=identity)
        self.frames.append(lambda: self.edge.cache_identity(admitted, context))
        return True


def run_world(seed) -> Counter[str]:
    """Send prompts to edges while auths fail and tenants change. Return counts of what happened."""
    chance, regions, counts = random.Random(seed), [Region(name) for name in REGIONS], Counter()
    allowed, credentials = dict.fromkeys(TENANTS, ()), {}
    for region in regions:
        for tenant_id in TENANTS:
            secret = f"pk_{tenant_id.replace('-', '')}_{'0123456789abcdef' * 2}"
            credentials[tenant_id] = Credential(bearer=secret)
            region.put(tenant_id, ())
            digest = region.auth.keys.digest(secret)
            key = Key(key_id=secret.split("_")[1], tenant_id=tenant_id, digest=digest, created_at=0.0)
            region.auth.put_key(key, 0.0)
    while counts["prompts"] < PROMPTS / 10:
        region, tenant_id, draw = chance.choice(regions), chance.choice(TENANTS), chance.random()
        region.now += 1.0
        if draw < 0.04 and all(each.is_auth_up for each in regions):  # an operator changes a tenant in every region
            allowed[tenant_id] = chance.choice(SETS)
            for each in regions:
                each.put(tenant_id, allowed[tenant_id])
        elif draw < 0.10:
            region.turn_auth(up=not region.is_auth_up)
        elif draw < 0.13:
            region.record_deferred()
        elif draw < 0.25:
            region.deliver(chance.randrange(3))
        else:
            counts["prompts"] += 1
            is_accepted = region.accepts(credentials[tenant_id], f"request-{counts['prompts']}")
            is_inside = is_region_allowed(allowed[tenant_id], region.name)
            mode = "with auth" if region.is_auth_up else "without auth"
            counts[f"{'accepted' if is_accepted else 'refused'} {'inside' if is_inside else 'outside'} {mode}"] += 1
    return counts


def test_no_prompt_of_a_resident_tenant_is_accepted_outside_of_its_regions():
    counts = sum((run_world(seed) for seed in range(10)), Counter())
    assert counts["prompts"] == PROMPTS
    assert counts["accepted outside with auth"] == counts["accepted outside without auth"] == 0
    assert counts["refused inside with auth"] == 0
    for found in ("accepted inside with auth", "accepted inside without auth", "refused outside with auth"):
        assert counts[found] > 500
    assert counts["refused outside without auth"] > 200


def test_an_edge_that_ignores_changes_of_regions_would_accept_prompts_outside(monkeypatch):
    monkeypatch.setattr(Residency, "is_changed", lambda *_: False)
    counts = sum((run_world(seed) for seed in range(4)), Counter())
    assert counts["accepted outside without auth"] > 0


@pytest.mark.parametrize(
    ("frames", "changed"),
    [
        ([("a", b""), ("a", b""), ("a", b"1"), ("a", b"1"), ("a", b"")], [True, False, True, False, True]),
        ([("a", b"1"), ("b", b"1"), ("b", b"2"), ("a", b"2")], [True, False, True, True]),
        ([("a", b"1"), ("b", b"2"), ("c", b"1"), ("c", b"1")], [True, True, False, False]),
    ],
)
def test_a_digest_is_compared_with_the_former_one_of_its_replica_or_else_with_those_of_the_others(frames, changed):
    residency = Residency("eu")
    assert [residency.is_changed(*each) for each in frames] == changed


def test_the_number_of_replicas_is_bounded():
    residency = Residency("eu")
    for number in range(2 * MAX_REPLICAS):
        residency.is_changed(f"auth-{number}", b"1")
    assert len(residency._digests) == MAX_REPLICAS


def test_the_digest_depends_on_tenants_and_their_regions_and_on_no_order_of_changes():
    first, second = TenantRegions(), TenantRegions()
    tenants = [Tenant(tenant_id=each, policy=Policy(allowed_regions=("eu",))) for each in ("a", "b")]
    for each in tenants:
        first.put(each)
    second.replace([*reversed(tenants), Tenant(tenant_id="c")])
    assert first.digest == second.digest
    second.remove("b")
    assert first.digest != second.digest
    second.remove("a")
    assert second.digest == b""


@pytest.mark.parametrize(
    ("allowed", "region", "is_refused"),
    [((), "", False), ((), "eu", False), (("eu",), "eu", False), (("eu",), "", True)],
)
def test_an_edge_without_a_region_refuses_tenants_that_name_regions(allowed, region, is_refused):
    refusal = Residency(region).refusal(Identity(tenant_id="acme", allowed_regions=allowed))
    assert (refusal is not None) == is_refused
