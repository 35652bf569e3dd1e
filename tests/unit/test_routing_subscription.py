"""Both variants of xDS against the rules of the protocol, without a proxy and a network."""

import pytest

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.delta import DeltaRequest, DeltaSubscription
from penstock.routing.xds.sotw import SotwRequest, SotwSubscription
from penstock.routing.xds.stream import XdsStream
from penstock.routing.xds.subscription import RequestKind

SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE = ResourceType


def snapshot_of(**bodies):
    """Clusters by name, each with an endpoint resource of the same name and body."""
    resources = []
    for name, body in bodies.items():
        refers = frozenset({(ENDPOINT, name)})
        resources.append(Resource(type=CLUSTER, name=name, body=b"cluster", references=refers))
        resources.append(Resource(type=ENDPOINT, name=name, body=body))
    return Snapshot.of(resources)


def names(answer):
    return [resource.name for resource in answer.resources]


# State of the world


def sotw(kind, snapshot, *wanted):
    """A subscription whose first response was sent and accepted."""
    subscription = SotwSubscription(kind)
    subscription.receive(SotwRequest(type=kind, names=wanted))
    answer = subscription.due(snapshot)
    subscription.receive(SotwRequest(type=kind, names=wanted, nonce=answer.nonce))
    return subscription, answer


def test_nothing_is_sent_before_the_first_request():
    assert SotwSubscription(CLUSTER).due(snapshot_of(a=b"1")) is None
    assert DeltaSubscription(CLUSTER).due(snapshot_of(a=b"1")) is None


def test_no_names_at_first_means_every_resource():
    _, answer = sotw(CLUSTER, snapshot_of(a=b"1", b=b"1"))
    assert names(answer) == ["a", "b"]


def test_named_resources_are_sent_and_no_others():
    _, answer = sotw(ENDPOINT, snapshot_of(a=b"1", b=b"1"), "b")
    assert names(answer) == ["b"]


def test_an_accepted_version_is_not_sent_again():
    snapshot = snapshot_of(a=b"1")
    subscription, answer = sotw(ENDPOINT, snapshot, "a")
    assert subscription.due(snapshot) is None
    newer = subscription.due(snapshot_of(a=b"2"))
    assert (newer.version, newer.nonce) != (answer.version, answer.nonce)


def test_a_rejected_version_is_not_sent_again_and_the_next_one_is():
    subscription = SotwSubscription(ENDPOINT)
    subscription.receive(SotwRequest(type=ENDPOINT, names=("a",)))
    answer = subscription.due(snapshot_of(a=b"bad"))
    nack = SotwRequest(type=ENDPOINT, names=("a",), nonce=answer.nonce, error="no such port")
    assert subscription.receive(nack) is RequestKind.NACK
    assert subscription.due(snapshot_of(a=b"bad")) is None
    assert names(subscription.due(snapshot_of(a=b"good"))) == ["a"]


def test_a_stale_nonce_changes_nothing():
    subscription, first = sotw(ENDPOINT, snapshot_of(a=b"1"), "a")
    second = subscription.due(snapshot_of(a=b"2"))
    assert subscription.receive(SotwRequest(type=ENDPOINT, names=("b",), nonce=first.nonce)) is RequestKind.STALE
    assert subscription.names == {"a"}
    assert subscription.receive(SotwRequest(type=ENDPOINT, names=("a",), nonce=second.nonce)) is RequestKind.ACK


def test_a_new_name_is_answered_though_the_version_is_the_same():
    snapshot = snapshot_of(a=b"1", b=b"1")
    subscription, answer = sotw(ENDPOINT, snapshot, "a")
    assert (
        subscription.receive(SotwRequest(type=ENDPOINT, names=("a", "b"), nonce=answer.nonce)) is RequestKind.SUBSCRIBE
    )
    again = subscription.due(snapshot)
    assert names(again) == ["a", "b"]
    assert again.version == answer.version


def test_fewer_names_cause_no_response():
    snapshot = snapshot_of(a=b"1", b=b"1")
    subscription, answer = sotw(ENDPOINT, snapshot, "a", "b")
    subscription.receive(SotwRequest(type=ENDPOINT, names=("a",), nonce=answer.nonce))
    assert subscription.due(snapshot) is None


def test_an_empty_list_after_names_subscribes_to_none():
    subscription, answer = sotw(ENDPOINT, snapshot_of(a=b"1"), "a")
    subscription.receive(SotwRequest(type=ENDPOINT, names=(), nonce=answer.nonce))
    assert subscription.due(snapshot_of(a=b"2")) is None


def test_a_star_among_names_means_every_resource():
    _, answer = sotw(CLUSTER, snapshot_of(a=b"1", b=b"1"), "*", "a")
    assert names(answer) == ["a", "b"]


def test_a_name_that_does_not_exist_is_answered_by_its_absence():
    _, answer = sotw(ENDPOINT, snapshot_of(a=b"1"), "absent")
    assert names(answer) == []


@pytest.mark.parametrize(
    ("subscription", "request_type"), [(SotwSubscription, SotwRequest), (DeltaSubscription, DeltaRequest)]
)
def test_one_response_is_in_flight_and_changes_until_its_ack_become_one_more(subscription, request_type):
    subscription_under_test = subscription(CLUSTER)
    subscription_under_test.receive(request_type(type=CLUSTER))
    first = subscription_under_test.due(snapshot_of(a=b"1"))
    assert subscription_under_test.due(snapshot_of(a=b"1", b=b"1")) is None
    assert subscription_under_test.due(snapshot_of(a=b"1", b=b"1", c=b"1")) is None
    assert subscription_under_test.receive(request_type(type=CLUSTER, nonce=first.nonce)) is RequestKind.ACK
    second = subscription_under_test.due(snapshot_of(a=b"1", b=b"1", c=b"1"))
    assert {"b", "c"} <= set(names(second))
    assert subscription_under_test.due(snapshot_of(a=b"1", b=b"1", c=b"1")) is None


# Incremental


def delta(kind, snapshot, *wanted, initial_versions=None):
    """A subscription whose first response, if one was due, is accepted."""
    subscription = DeltaSubscription(kind)
    subscription.receive(DeltaRequest(type=kind, subscribe=wanted, initial_versions=initial_versions or {}))
    return subscription, settle(subscription, snapshot)


def settle(subscription, snapshot):
    if answer := subscription.due(snapshot):
        assert subscription.receive(DeltaRequest(type=subscription.type, nonce=answer.nonce)) is RequestKind.ACK
    return answer


def test_only_changed_resources_are_sent():
    subscription, first = delta(ENDPOINT, snapshot_of(a=b"1", b=b"1"), "a", "b")
    assert names(first) == ["a", "b"]
    second = settle(subscription, snapshot_of(a=b"1", b=b"2"))
    assert (names(second), second.removed) == (["b"], ())


def test_a_removed_resource_is_named_once():
    subscription, _ = delta(CLUSTER, snapshot_of(a=b"1", b=b"1"))
    answer = settle(subscription, snapshot_of(a=b"1"))
    assert (names(answer), answer.removed) == ([], ("b",))
    assert subscription.due(snapshot_of(a=b"1")) is None


def test_a_resource_that_is_restored_is_sent_again():
    subscription, _ = delta(ENDPOINT, snapshot_of(a=b"1"), "a")
    assert settle(subscription, snapshot_of(b=b"1")).removed == ("a",)
    assert names(settle(subscription, snapshot_of(a=b"1"))) == ["a"]


def test_a_name_that_does_not_exist_is_reported_as_removed():
    subscription, answer = delta(ENDPOINT, snapshot_of(a=b"1"), "absent")
    assert (names(answer), answer.removed) == ([], ("absent",))
    assert subscription.due(snapshot_of(a=b"2")) is None


def test_a_reconnecting_proxy_is_sent_only_missing_resources():
    held = snapshot_of(a=b"1", b=b"1").by_type[ENDPOINT]
    versions = {"a": held["a"].version, "b": held["b"].version, "removed": "x"}
    now = snapshot_of(a=b"1", b=b"2")
    _, answer = delta(ENDPOINT, now, "a", "b", "removed", initial_versions=versions)
    assert (names(answer), answer.removed) == (["b"], ("removed",))


def test_a_reconnecting_proxy_with_all_resources_is_sent_nothing():
    snapshot = snapshot_of(a=b"1")
    versions = {"a": snapshot.by_type[ENDPOINT]["a"].version}
    _, answer = delta(ENDPOINT, snapshot, "a", initial_versions=versions)
    assert answer is None


def test_a_wildcard_gets_one_response_even_if_it_is_empty():
    subscription, answer = delta(CLUSTER, snapshot_of())
    assert (names(answer), answer.removed) == ([], ())
    assert subscription.due(snapshot_of()) is None


def test_subscribing_again_sends_the_resource_again():
    snapshot = snapshot_of(a=b"1", b=b"1")
    subscription, _ = delta(ENDPOINT, snapshot, "a", "b")
    subscription.receive(DeltaRequest(type=ENDPOINT, subscribe=("a",)))
    assert names(settle(subscription, snapshot)) == ["a"]


def test_an_unsubscribed_resource_is_neither_sent_nor_removed():
    subscription, _ = delta(ENDPOINT, snapshot_of(a=b"1", b=b"1"), "a", "b")
    subscription.receive(DeltaRequest(type=ENDPOINT, unsubscribe=("a",)))
    assert subscription.due(snapshot_of(b=b"1")) is None


def test_leaving_the_wildcard_keeps_the_requested_names():
    subscription, _ = delta(CLUSTER, snapshot_of(a=b"1", b=b"1"), "*", "a")
    subscription.receive(DeltaRequest(type=CLUSTER, unsubscribe=("*",)))
    assert subscription.due(snapshot_of(a=b"1", c=b"1")) is None
    assert settle(subscription, snapshot_of(c=b"1")).removed == ("a",)


def test_a_name_unsubscribed_under_a_wildcard_is_sent_again():
    snapshot = snapshot_of(a=b"1")
    subscription, _ = delta(CLUSTER, snapshot, "*", "a")
    subscription.receive(DeltaRequest(type=CLUSTER, unsubscribe=("a",)))
    assert names(settle(subscription, snapshot)) == ["a"]


def test_a_rejected_resource_is_not_sent_again_until_it_changes():
    subscription = DeltaSubscription(ENDPOINT)
    subscription.receive(DeltaRequest(type=ENDPOINT, subscribe=("a",)))
    answer = subscription.due(snapshot_of(a=b"bad"))
    assert subscription.receive(DeltaRequest(type=ENDPOINT, nonce=answer.nonce, error="no")) is RequestKind.NACK
    assert subscription.due(snapshot_of(a=b"bad")) is None
    assert names(settle(subscription, snapshot_of(a=b"good"))) == ["a"]


def test_names_that_come_with_a_stale_nonce_still_count():
    subscription, first = delta(ENDPOINT, snapshot_of(a=b"1", b=b"1"), "a")
    second = subscription.due(snapshot_of(a=b"2", b=b"1"))
    stale = DeltaRequest(type=ENDPOINT, nonce=first.nonce, subscribe=("b",))
    assert subscription.receive(stale) is RequestKind.STALE
    assert subscription.receive(DeltaRequest(type=ENDPOINT, nonce=second.nonce)) is RequestKind.ACK
    assert names(settle(subscription, snapshot_of(a=b"2", b=b"1"))) == ["b"]


# The stream


def test_a_stream_sends_referenced_resources_first():
    stream = XdsStream(DeltaSubscription)
    for kind in (ROUTE, LISTENER, ENDPOINT, CLUSTER):
        assert stream.receive(DeltaRequest(type=kind)) is RequestKind.SUBSCRIBE
    assert [answer.type for answer in stream.due(snapshot_of(a=b"1"))] == [CLUSTER, ENDPOINT, LISTENER, ROUTE]


def test_each_type_has_its_own_nonces():
    stream = XdsStream(SotwSubscription)
    stream.receive(SotwRequest(type=CLUSTER))
    stream.receive(SotwRequest(type=ENDPOINT, names=("a",)))
    clusters, endpoints = stream.due(snapshot_of(a=b"1"))
    assert stream.receive(SotwRequest(type=CLUSTER, nonce=clusters.nonce)) is RequestKind.ACK
    assert stream.receive(SotwRequest(type=ENDPOINT, names=("a",), nonce=endpoints.nonce)) is RequestKind.ACK
