"""Who is an operator, and what failed attempts cost. Times are passed in."""

from dataclasses import replace

import pytest

from penstock.chassis.config import ConfigError
from penstock.chassis.errors import Overloaded, PermissionDenied
from penstock.chassis.operators.access import OperatorAccess, check_protected
from penstock.chassis.operators.throttle import FAILURE_BURST, MAX_PEERS, FailureThrottle, RefusalReport
from penstock.chassis.security.identity import PeerIdentity

PEER = "ipv4:127.0.0.1:5000"
RIGHT, WRONG = "Bearer t0ken", "Bearer t0ke"
OPERATOR, EDGE = (PeerIdentity("penstock.local", *each) for each in (("operator", "anna"), ("edge", "edge-1")))


def with_token():
    return OperatorAccess(is_unix=False, token="t0ken")


@pytest.mark.parametrize(
    ("listen", "token", "is_tls"),
    [("unix:/run/a", "", False), ("127.0.0.1:7009", "t", False), ("0.0.0.0:7009", "t", False), ("[::]:7009", "", True)],
)
def test_a_listener_with_a_way_to_know_operators_may_open(listen, token, is_tls):
    check_protected(listen, token=token, is_tls=is_tls)


@pytest.mark.parametrize("listen", ["127.0.0.1:7009", "[::1]:7009", "0.0.0.0:7009", "10.0.0.1:7009"])
def test_without_token_and_certificates_only_a_unix_socket_may_open(listen):
    with pytest.raises(ConfigError, match="PENSTOCK_ADMIN_TOKEN"):
        check_protected(listen, token="", is_tls=False)


@pytest.mark.parametrize("shown", ["", "t0ken", "Bearer ", WRONG, "Bearer t0ken ", "bearer t0ken", "Bearer t0kén"])
def test_only_the_whole_token_is_accepted(shown):
    access = with_token()
    assert access.authorize(PEER, RIGHT, None, 0.0) == "token"
    with pytest.raises(PermissionDenied) as refused:
        access.authorize(PEER, shown, None, 0.0)
    assert refused.value.reason == "ADMIN_ONLY"
    assert access.figures() == {"admin_refused": 1, "admin_throttled": 0}


def test_an_empty_token_admits_nobody():
    with pytest.raises(PermissionDenied):
        OperatorAccess(is_unix=False).authorize(PEER, "Bearer ", None, 0.0)


def test_a_certificate_of_tier_operator_is_an_operator_and_another_tier_s_is_not():
    access = OperatorAccess(is_unix=False)
    assert access.authorize(PEER, "", OPERATOR, 0.0) == "operator:anna"
    with pytest.raises(PermissionDenied):
        access.authorize(PEER, "", EDGE, 0.0)


def test_an_operator_of_another_trust_domain_is_none():
    access = OperatorAccess(is_unix=False, trust_domain="penstock.example")
    with pytest.raises(PermissionDenied):
        access.authorize(PEER, "", OPERATOR, 0.0)
    other = replace(OPERATOR, trust_domain="penstock.example")
    assert access.authorize(PEER, "", other, 0.0) == "operator:anna"


def test_the_owner_of_a_unix_socket_needs_no_token():
    assert OperatorAccess(is_unix=True, token="t0ken").authorize("unix:", "", None, 0.0).startswith("unix:")


def fail(access, times, peer=PEER, now=0.0):
    for _ in range(times):
        with pytest.raises(PermissionDenied):
            access.authorize(peer, WRONG, None, now)


def test_after_a_burst_of_wrong_tokens_the_host_waits_even_with_the_right_one():
    access = with_token()
    fail(access, int(FAILURE_BURST))
    for shown in (WRONG, RIGHT):
        with pytest.raises(Overloaded) as throttled:
            access.authorize("ipv4:127.0.0.1:5001", shown, None, 0.25)
        assert (throttled.value.reason, throttled.value.retry_after) == ("ADMIN_THROTTLED", 0.75)
    assert access.authorize("ipv4:10.0.0.2:5000", RIGHT, None, 0.25) == "token"
    assert access.authorize(PEER, WRONG, OPERATOR, 0.25) == "operator:anna"
    assert access.authorize(PEER, RIGHT, None, 1.0) == "token"
    assert access.figures() == {"admin_refused": 5, "admin_throttled": 2}


def test_a_host_that_goes_on_guessing_gets_one_guess_a_second():
    access, guesses = with_token(), 0
    for tick in range(600):  # a minute of ten attempts a second
        try:
            access.authorize(PEER, WRONG, None, tick / 10)
        except PermissionDenied:
            guesses += 1
        except Overloaded:
            pass
    assert guesses <= FAILURE_BURST + 60


def test_the_table_of_hosts_is_bounded():
    throttle = FailureThrottle()
    for number in range(10 * MAX_PEERS):
        throttle.record_failure(str(number), 0.0)
    assert len(throttle._levels) == MAX_PEERS


def test_refusals_are_reported_once_a_second_with_their_number():
    report = RefusalReport()
    assert [report.record(tick / 10) for tick in range(22)] == [1, *[0] * 9, 10, *[0] * 9, 10, 0]
    assert report.take() == 1
