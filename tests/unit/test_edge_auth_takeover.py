"""A dead replica of auth and its successor, on virtual time: who waits how long, and who notices nothing."""

import asyncio

import pytest

from auth_replicas import HIGH, LOW, claims, tenant_in
from penstock.edge.upstreams import frames
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.v1.inference_pb2 import PRIORITY_BATCH
from virtual_auth import VirtualAuthMesh

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

LOW_TENANT, HIGH_TENANT = tenant_in(LOW), tenant_in(HIGH)
NEWCOMER = tenant_in({partition_of(LOW_TENANT)}, 1)
ROUND_TRIP_S = 0.1  # at most


@pytest.fixture
def mesh(monkeypatch):
    made = VirtualAuthMesh(monkeypatch, claims(LOW), claims(HIGH))
    for tenant in (LOW_TENANT, HIGH_TENANT):
        first = made.request(tenant, f"first {tenant}")
        made.pass_by(ROUND_TRIP_S)
        assert first.state == "queued"
        first.cancel()
    made.pass_by(ROUND_TRIP_S)
    yield made
    assert made.loop.failures == []
    asyncio._set_running_loop(None)  # a world has set it


def test_known_tenants_go_on_after_a_second_newcomers_are_admitted_by_the_successor_and_others_notice_nothing(mesh):
    low, high = mesh.replicas
    mesh.kill(low)
    mesh.pass_by(0.3)
    known, newcomer, other = (mesh.request(tenant, tenant) for tenant in (LOW_TENANT, NEWCOMER, HIGH_TENANT))
    mesh.pass_by(ROUND_TRIP_S)
    assert (known.state, newcomer.state, other.state) == ("reserving", "reserving", "queued")
    mesh.pass_by(0.5)
    assert known.state == "reserving"  # 0.9 s after the death
    mesh.pass_by(0.3)
    assert (known.state, newcomer.state) == ("queued", "reserving")
    mesh.pass_by(0.6)
    mesh.claim(high, {**high.epochs, **claims(LOW, 2)})  # 1.8 s after the death
    mesh.pass_by(ROUND_TRIP_S)
    assert newcomer.state == "queued"
    figures = mesh.runner.figures()
    assert (figures["fallback_admitted"], figures["fallback_rejected"], figures["deferred_reservations"]) == (1, 0, 0)
    assert high.received[-2:] == [("deferred", LOW_TENANT), ("reserve", NEWCOMER)]


def test_a_line_of_a_batch_waits_for_the_successor_and_takes_no_tokens_of_the_grant(mesh):
    low, high = mesh.replicas
    known = mesh.request(LOW_TENANT, "first line", is_delegated=True)
    mesh.pass_by(ROUND_TRIP_S)
    assert known.state == "queued"
    mesh.kill(low)
    mesh.pass_by(0.3)
    line = mesh.request(LOW_TENANT, "line", is_delegated=True)
    mesh.pass_by(1.5)
    assert (line.state, line.error) == ("reserving", "")
    mesh.claim(high, {**high.epochs, **claims(LOW, 2)})
    mesh.pass_by(ROUND_TRIP_S)
    assert line.state == "queued"
    figures = mesh.runner.figures()
    assert (figures["fallback_admitted"], figures["deferred_reservations"]) == (0, 0)
    assert high.received[-1] == ("reserve", "line")


def test_a_line_of_a_batch_is_rejected_if_no_replica_takes_over(mesh):
    mesh.request(LOW_TENANT, "first line", is_delegated=True)
    mesh.pass_by(ROUND_TRIP_S)
    mesh.kill(mesh.replicas[0])
    mesh.pass_by(2.0)
    line = mesh.request(LOW_TENANT, "line", is_delegated=True)
    mesh.pass_by(2.4)
    assert (line.state, line.error) == ("done", "AUTH_LOST")


def test_all_runs_of_a_line_have_one_fingerprint_also_if_the_edge_does_not_know_its_key(mesh):
    known, other, stranger = (
        mesh.request(tenant, name, is_delegated=True)
        for tenant, name in ((LOW_TENANT, "run 1"), (LOW_TENANT, "run 2"), (HIGH_TENANT, "another line"))
    )
    mesh.pass_by(ROUND_TRIP_S)
    other.context.request.identity = Identity()
    sent = [frames.reserve(each.context).reserve for each in (known, other, stranger)]
    assert [each.credential.delegation.decode() for each in sent] == [LOW_TENANT, LOW_TENANT, HIGH_TENANT]
    first, again, foreign = (each.answer_fingerprint for each in sent)
    assert first == again != foreign


def test_a_deferred_reservation_names_the_granted_class_and_no_credential(mesh):
    request = mesh.request(LOW_TENANT, "request")
    mesh.pass_by(ROUND_TRIP_S)
    caller = Identity(key_id="oidc/acme/anna", priority=PRIORITY_BATCH)
    sent = frames.reserve_admitted(request.context, caller, b"grant").reserve
    assert (sent.priority, sent.fallback_admission.key_id) == (PRIORITY_BATCH, "oidc/acme/anna")
    assert not sent.HasField("credential")


def test_a_newcomer_is_rejected_4_s_after_the_death_if_no_replica_takes_over(mesh):
    mesh.kill(mesh.replicas[0])
    mesh.pass_by(2.0)
    early = mesh.request(NEWCOMER, "early")
    mesh.pass_by(1.9)
    assert (early.state, early.error) == ("reserving", "")
    mesh.pass_by(0.4)
    assert (early.state, early.error) == ("done", "AUTH_LOST")
    late = mesh.request(NEWCOMER, "late")
    mesh.pass_by(ROUND_TRIP_S)
    assert late.error == "AUTH_LOST"


def test_a_newcomer_is_rejected_after_a_second_if_no_replica_is_left(mesh):
    for replica in mesh.replicas:
        mesh.kill(replica)
    mesh.pass_by(0.3)
    newcomer = mesh.request(NEWCOMER, "newcomer")
    mesh.pass_by(0.5)
    assert newcomer.error == ""
    mesh.pass_by(0.5)
    assert newcomer.error == "AUTH_LOST"
    late = mesh.request(NEWCOMER, "late")
    assert late.error == "AUTH_LOST"  # at once


def test_no_tenant_of_a_frozen_replica_is_rejected_before_its_stream_is_cut(mesh):
    """Its silence shows by the first request that it does not answer; callers are identified by the other replica."""
    low, high = mesh.replicas
    mesh.world.halt(low.loop)
    known, newcomer = mesh.request(LOW_TENANT, "known"), mesh.request(NEWCOMER, "newcomer")
    mesh.pass_by(0.9)
    assert known.state == "reserving"
    mesh.pass_by(0.4)
    assert known.state == "queued"
    mesh.pass_by(1.2)
    assert mesh.runner.figures()["auth_links_up"] == 1
    mesh.claim(high, {**high.epochs, **claims(LOW, 2)})
    mesh.pass_by(ROUND_TRIP_S)
    assert (newcomer.state, newcomer.error) == ("queued", "")
