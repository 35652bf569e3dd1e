"""The checks of worlds of several regions find each kind of violation, and none in a correct world."""

import pytest

from penstock.faults.checks.checker import LedgerRow
from penstock.faults.checks.regions import (
    RegionLedger,
    RegionStream,
    RegionWatch,
    check_links,
    check_offers,
    check_region_charges,
    check_spills,
)
from penstock.faults.plan import PlannedRequest
from penstock.faults.world.clients.clients import ClientTranscript
from penstock.mesh.v1.region_pb2 import (
    GuestOffer,
    GuestRejected,
    GuestStarted,
    RegionServiceRunRequest,
    RegionServiceRunResponse,
)
from penstock.mesh.v1.worker_pb2 import Cancel, RunFinished

LENGTH, TOKENS = 4, 6
REQUEST = PlannedRequest(
    starts_at=0.0, prompt=(1,) * LENGTH, max_output_tokens=TOKENS, seed=7, ignore_eos=True, tenant=0, region=0
)
MADE = {LENGTH: TOKENS}
MAX_DELAY_S = 1.0


def transcript(**changes):
    given = {
        "request": REQUEST,
        "token_ids": [0] * TOKENS,
        "finish_reason": "length",
        "attempts": 1,
        "has_ended": True,
        "ended_at": 2.0,
    }
    return ClientTranscript(**given | changes)


def row(reservation="r1", **changes):
    return LedgerRow(reservation, f"t{reservation}", LENGTH, TOKENS, LENGTH, TOKENS, "length", "")._replace(**changes)


def stream(number=1, region="us", connected=True):
    return RegionStream(number, "eu-edge0", region, lambda: connected)


def offer(handle=1, emitted=0):
    return RegionServiceRunRequest(offer=GuestOffer(handle=handle, token_ids=[1] * (LENGTH + emitted), emitted=emitted))


def watch(allowed=()):
    return RegionWatch({LENGTH: allowed})


def kinds(violations):
    return [each.kind for each in violations]


def test_a_prompt_that_leaves_the_regions_of_its_tenant_is_found_at_the_offer_and_at_the_worker():
    seen = watch(allowed=("eu", "ap"))
    seen.on_request_frame(0.0, stream(region="ap"), offer())
    seen.on_start("eu", LENGTH)
    assert seen.violations == []
    seen.on_request_frame(0.1, stream(number=2), offer(emitted=3))
    seen.on_start("us", LENGTH)
    assert kinds(seen.violations) == ["residency", "residency"]


def test_a_tenant_without_regions_may_be_served_in_all():
    seen = watch()
    seen.on_request_frame(0.0, stream(), offer())
    seen.on_start("us", LENGTH)
    assert seen.violations == []


ENDS = {
    "cancel": lambda seen: seen.on_request_frame(0.5, stream(), RegionServiceRunRequest(cancel=Cancel(handle=1))),
    "rejected": lambda seen: seen.on_response_frame(0.5, 1, RegionServiceRunResponse(rejected=GuestRejected(handle=1))),
    "finished": lambda seen: seen.on_response_frame(0.5, 1, RegionServiceRunResponse(finished=RunFinished(handle=1))),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_offer_may_follow_one_that_has_ended(end):
    seen = watch()
    seen.on_request_frame(0.0, stream(), offer())
    ENDS[end](seen)
    seen.on_request_frame(0.6, stream(number=2, region="ap"), offer())
    seen.on_request_frame(0.7, stream(number=2, region="ap"), RegionServiceRunRequest(cancel=Cancel(handle=1)))
    assert list(check_offers(seen, [transcript()], MAX_DELAY_S)) == []


def test_an_offer_beside_one_that_is_open_is_found():
    seen = watch()
    seen.on_request_frame(0.0, stream(), offer())
    seen.on_request_frame(0.6, stream(number=2, region="ap"), offer())
    for number in (1, 2):
        seen.on_response_frame(1.0, number, RegionServiceRunResponse(finished=RunFinished(handle=1)))
    assert kinds(check_offers(seen, [transcript()], MAX_DELAY_S)) == ["two_runs"]
    # A client that sends its request again may find the same edge before this has noticed the loss of the first call.
    assert list(check_offers(seen, [transcript(attempts=2)], MAX_DELAY_S)) == []


def test_an_offer_may_follow_one_whose_stream_is_lost():
    seen = watch()
    seen.on_request_frame(0.0, stream(connected=False), offer())
    seen.on_request_frame(0.6, stream(number=2, region="ap"), offer())
    seen.on_response_frame(1.0, 2, RegionServiceRunResponse(finished=RunFinished(handle=1)))
    assert list(check_offers(seen, [transcript()], MAX_DELAY_S)) == []


@pytest.mark.parametrize("ended_at", [None, 3.5])
def test_a_guest_that_outlives_its_request_is_found(ended_at):
    seen = watch()
    seen.on_request_frame(0.0, stream(), offer())
    if ended_at:
        seen.on_response_frame(ended_at, 1, RegionServiceRunResponse(finished=RunFinished(handle=1)))
    assert kinds(check_offers(seen, [transcript()], MAX_DELAY_S)) == ["guest"]


def test_an_overload_without_a_spilled_request_is_found():
    seen = watch()
    assert kinds(check_spills(seen.started, must_spill=True)) == ["spill"]
    seen.on_response_frame(0.5, 1, RegionServiceRunResponse(started=GuestStarted(handle=1)))
    assert list(check_spills(seen.started, must_spill=True)) == []


def charges(*ledgers, client=None, allowed=(), **excuses):
    made = [RegionLedger(region, rows) for region, rows in ledgers]
    return kinds(check_region_charges([client or transcript()], made, MADE, allowed=allowed, **excuses))


def test_one_charge_in_one_region_is_right():
    assert charges(("eu", [row()]), ("us", [])) == []


@pytest.mark.parametrize(
    "ledgers",
    [
        {"eu": [], "us": []},  # not charged at all
        {"eu": [row(output_tokens=TOKENS - 1)], "us": []},  # a token too few
        {"eu": [row()], "us": [row("r2")]},  # the other region charges its guest
        {"eu": [row(), row("r2")], "us": []},  # twice at home
        {"eu": [row(), row("r2", reserved_prompt=9, prompt_tokens=9)], "us": []},  # of no client
    ],
    ids=["none", "too_few", "both_regions", "twice", "unknown"],
)
def test_a_wrong_charge_is_found(ledgers):
    assert set(charges(*ledgers.items())) == {"charge"}


def test_an_answer_that_was_resumed_in_another_region_has_charges_in_both():
    """Its edge at home charges what it has sent, and the other region what it has computed."""
    rows = {"eu": [row(output_tokens=2, outcome="cancelled")], "us": [row("r2", answer_id="a")]}
    assert charges(*rows.items(), client=transcript(attempts=2)) == []
    assert charges(*rows.items(), client=transcript(attempts=1)) != []


def test_a_charge_outside_of_the_regions_of_a_tenant_is_found():
    assert charges(("eu", []), ("us", [row()]), allowed=("eu",)) == ["residency"]


def test_an_edge_without_its_streams_at_rest_is_found():
    figures = {
        "eu-edge0": ("edge", {"region_links_up": 2.0}),
        "us-edge0": ("edge", {"region_links_up": 1.0}),
        "us-queue0": ("queue", {}),
    }
    assert [each.text for each in check_links(figures, 2)] == ["us-edge0 has 1.0 of 2 streams to other regions"]
