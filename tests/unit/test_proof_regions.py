"""The checks of the proof of regions find what a wrong region would do."""

from collections import Counter

import pytest

from penstock.bench.transcript import OK, TokenTranscript
from penstock.proofs.card import ProofCard, at_most, exactly
from penstock.proofs.checks.quota import LedgerEntry, TenantLimits
from penstock.proofs.regions.cut import LIMITS, tenant_lines, used_share
from penstock.proofs.regions.cut import void_reason as cut_void_reason
from penstock.proofs.regions.drain import cut_lines, end_lines
from penstock.proofs.regions.judge import (
    RegionCharge,
    ResidencyFindings,
    Window,
    WorkCount,
    find_outside,
    idle_share,
    minutes_of,
    share_deviation,
    windows_of,
)
from penstock.proofs.regions.kill import resume_lines, stream_lines
from penstock.proofs.regions.load import Resume, active_at
from penstock.proofs.regions.options import PARTS
from penstock.proofs.regions.overload import capacity_void_reason
from penstock.proofs.regions.proof import RUN_PARTS
from penstock.proofs.regions.residency import residency_lines
from penstock.proofs.regions.residency import void_reason as residency_void_reason
from penstock.proofs.regions.testbed import PartResult


def charge(number=0, at=0.0, worker="eu-worker-1", *, tenant="acme", tokens=10, lasts=1.0):
    entry = LedgerEntry(
        reservation_id=f"r-{number}",
        ticket_id=f"t-{number}",
        tenant_id=tenant,
        reserved_at=at,
        settled_at=at + lasts,
        reserved_tokens=100,
        prompt_tokens=0,
        made_tokens=tokens,
        outcome="stop",
    )
    return RegionCharge(entry, tokens, worker)


def transcript(request_id="r", started=0.0, ended=2.0, *, outcome=OK, attempts=1, text="ab"):
    return TokenTranscript(
        0,
        started,
        ended_at=ended,
        outcome=outcome,
        attempts=attempts,
        request_id=request_id,
        text=text,
        finish_reason="stop" if outcome == OK else "",
        failure_text="" if outcome == OK else outcome,
    )


def by_figure(lines):
    return {line.figure: line for line in lines}


def missed(lines):
    return [line.figure for line in lines if not line.is_met]


def test_every_part_has_a_run():
    assert tuple(RUN_PARTS) == PARTS


def test_requests_are_counted_in_the_window_in_which_they_began():
    charges = [
        charge(0, 100.0),
        charge(1, 104.9, "region:us"),
        charge(2, 105.0, "region:us"),
        charge(3, 99.9, "region:us"),  # before the first window
        charge(4, 110.0),  # after the last whole window
        charge(5, 106.0, ""),  # rejected
    ]
    assert windows_of(charges, 100.0, 112.0, 5.0) == [Window(2, 1), Window(1, 1)]


def test_a_swing_between_two_regions_has_a_deviation_and_a_constant_share_has_none():
    assert share_deviation([Window(10, 5), Window(20, 10)]) == 0
    assert share_deviation([Window(10, 0), Window(10, 10)]) == 0.5
    assert share_deviation([Window(0, 0)]) == share_deviation([]) == 0


def work(at=10.0, steps=200.0, tokens=3_200.0, busy=9.8):
    return WorkCount(at=at, steps=steps, tokens=tokens, busy_s=busy, slots=16)


@pytest.mark.parametrize(
    ("now", "idle"),
    [
        (work(), 0.0),
        (work(tokens=3_040), 0.05),  # slots without a token
        (work(steps=100, tokens=1_600, busy=4.9), 0.5),  # half of the time without a step
        (work(steps=100, tokens=800, busy=4.9), 0.75),
        (work(busy=9.9), 0.0),  # less time between steps than when it was saturated
        (work(steps=0, tokens=0, busy=0), 1.0),
    ],
)
def test_idle_capacity_is_that_of_slots_and_of_time_without_a_step(now, idle):
    assert idle_share(now, work()) == pytest.approx(idle)


def test_a_capacity_that_one_worker_alone_served_proves_nothing():
    assert not capacity_void_reason([9.3, 9.2])
    assert capacity_void_reason([9.5, 5.35])
    assert capacity_void_reason([0.0, 0.0])


def test_work_between_two_counts_is_their_difference():
    done = work(at=25.0, steps=500, tokens=5_000, busy=20.0).since(work(at=15.0, steps=300, tokens=2_000, busy=11.0))
    assert (done.at, done.tokens_per_s, done.step_share, done.slot_share) == (10.0, 300.0, 0.9, 3_000 / 3_200)


def test_requests_and_tokens_of_all_regions_are_counted_by_minute():
    entries = [charge(0, 0.0).entry, charge(1, 59.9).entry, charge(2, 60.0, tokens=7).entry]
    assert minutes_of(entries, 0.0, 61.0) == [(2, 20), (1, 7)]
    assert minutes_of([], 0.0, 60.0) == [(0, 0)]


def limited(requests_by_region):
    """The lines of tenants with limits, of which `few-requests` has so many requests at once in each region."""
    charges = {
        region: [charge(number, 0.0, tenant="few-requests") for number in range(count)]
        for region, count in requests_by_region.items()
    }
    return by_figure(tenant_lines(charges, (0.0, 60.0)))


def test_a_limit_that_each_region_enforces_alone_is_exceeded_by_both_together():
    beyond = "few-requests: requests beyond its limit, over both regions"
    limit = LIMITS["few-requests"].requests_per_minute
    assert limited({"eu": limit // 2, "us": limit // 2})[beyond].measured == 0
    assert limited({"eu": limit // 2 + 1, "us": limit // 2 + 1})[beyond].is_met, "each region rounds by one"
    exceeded = limited({"eu": limit, "us": limit})[beyond]
    assert (exceeded.measured, exceeded.is_met) == (limit, False)


def test_the_used_share_of_a_limit_counts_the_full_bucket_and_its_refill():
    entries = [charge(number, tokens=10).entry for number in range(60)]
    assert used_share(entries, TenantLimits(requests_per_minute=30), 60.0) == 1.0
    assert used_share(entries, TenantLimits(tokens_per_minute=600), 60.0) == 0.5


def test_a_cut_without_load_over_it_is_void():
    over = [transcript(outcome="QUOTA_EXCEEDED")]
    assert not cut_void_reason(over, 1, has_blocked_data=True)
    assert cut_void_reason(over, 1, has_blocked_data=False)
    assert cut_void_reason(over, 0, has_blocked_data=True)
    assert cut_void_reason([transcript()], 1, has_blocked_data=True)


def ended(tenant="resident", reason="", worker="us-worker-1"):
    return {"tenant": tenant, "reason": reason, "worker_id": worker}


@pytest.mark.parametrize(
    ("charges", "records", "figure"),
    [
        ({"eu": [charge(worker="region:us", tenant="resident")], "us": []}, {}, "served elsewhere"),
        ({"eu": [], "us": [charge(tenant="resident")]}, {}, "in the ledger of the other region"),
        ({"eu": [], "us": []}, {"us": [ended()]}, "ended at edges"),
        # A rejected offer has brought the prompt there.
        ({"eu": [], "us": []}, {"us": [ended(reason="QUEUE_FULL", worker="")]}, "ended at edges"),
    ],
)
def test_a_prompt_outside_of_its_region_is_found_in_each_record(charges, records, figure):
    found = find_outside("resident", charges, records, "eu")
    lines = residency_lines(Counter({OK: 5}), found, ResidencyFindings(), {})
    [line] = missed(lines)
    assert figure in line


def test_prompts_that_never_could_leave_prove_nothing():
    refused, seen = Counter({"REGION_NOT_ALLOWED": 1}), {"charged": 1, "ran": 1, "away": 1}
    assert not residency_void_reason(refused, ResidencyFindings(**seen))
    assert residency_void_reason(Counter({OK: 1}), ResidencyFindings(**seen))
    for name in seen:
        assert residency_void_reason(refused, ResidencyFindings(**(seen | {name: 0})))


def test_a_refusal_and_other_tenants_are_not_outside_of_their_region():
    refused = [ended(reason="REGION_NOT_ALLOWED", worker=""), ended("roaming")]
    charges = {"eu": [charge(tenant="resident"), charge(worker="region:us", tenant="roaming")], "us": [charge()]}
    found = find_outside("resident", charges, {"eu": [ended()], "us": refused}, "eu")
    assert found == ResidencyFindings(refused=1)


def test_running_requests_without_an_answer_from_elsewhere_are_found():
    struck = [transcript("a", attempts=2), transcript("b", attempts=2), transcript("c")]
    resumes = {"a": [Resume(9.0, 0.1), Resume(10.7, 0.4)], "b": [Resume(10.9, 0.6)]}
    lines = resume_lines(struck, resumes, killed_at=10.0)
    assert missed(lines) == ["longest of these times"]
    assert by_figure(lines)["longest of these times from the kill"].measured == pytest.approx(0.9)
    lacking = by_figure(resume_lines(struck, {}, killed_at=10.0))
    assert lacking["running requests without a token from the other region"].measured == 2


def test_streams_that_end_otherwise_than_without_a_kill_are_counted():
    reference = [transcript()]
    struck = [transcript(), transcript(text="other"), transcript(outcome="CONNECTION_LOST", text="")]
    lines = by_figure(stream_lines(struck, struck, reference))
    assert lines["of these complete with identical text"].measured == pytest.approx(100 / 3)
    assert lines["requests that failed"].measured == 1
    assert lines["requests with another text"].measured == 1


def test_a_stream_that_was_repeated_elsewhere_was_cut_by_the_drain():
    struck = [transcript(), transcript(attempts=2), transcript(outcome="CONNECTION_LOST")]
    assert by_figure(cut_lines(struck, struck, [transcript()]))["streams that the drain cut"].measured == 2


def test_a_drain_ends_with_the_longest_answer():
    struck = [transcript(ended=8.0)]
    assert not missed(end_lines(struck, 9.0, 0, 1))
    assert missed(end_lines(struck, 11.0, 1, 0)) == [
        "time until the region had no open call",
        "requests that it began 2 s after the drain",
        "requests that the other region served",
    ]


def test_requests_are_active_from_their_start_to_their_end():
    found = [transcript("a", 0, 5), transcript("b", 5, 6), transcript("c", 1, 0)]
    assert [each.request_id for each in active_at(found, 5.0)] == ["b", "c"], "the last one has not ended"


def test_a_card_has_the_lines_and_the_void_reasons_of_all_parts():
    card = ProofCard(proof="regions")
    PartResult(lines=[exactly("cut", 0, 0)], notes=["calm"]).add_to(card, "drain")
    PartResult(lines=[at_most("late", 2, 1)], void_reason="no load").add_to(card, "kill")
    assert [line.figure for line in card.lines] == ["drain: cut", "kill: late"]
    assert (card.void_reason, card.notes, card.verdict) == ("kill: no load", ["drain: calm"], "void")
