"""The checks of the proof `quota` find what a wrong auth would do."""

import orjson

from penstock.bench.transcript import TokenTranscript
from penstock.proofs.checks.ledger import LedgerCharge
from penstock.proofs.checks.quota import EngineCount, LedgerEntry, TenantLimits, check_engine_counts, check_limits
from penstock.proofs.live.quota import answer_charge_lines, cut_off_tickets


def entry(number, at=0.0, tokens=10, *, outcome="stop", tenant="acme", lasts=1.0, ticket="", reserved=100):
    return LedgerEntry(
        reservation_id=f"r-{number}",
        ticket_id=ticket or f"t-{number}",
        tenant_id=tenant,
        reserved_at=at,
        settled_at=at + lasts,
        reserved_tokens=reserved,
        prompt_tokens=0,
        made_tokens=tokens,
        outcome=outcome,
    )


def found(limit, *entries, deferred=()):
    return check_limits(entries, {"acme": limit}, set(deferred))


def test_a_minute_of_tokens_at_once_and_their_refill_are_within_the_limit():
    takes = [entry(0, 0.0, 600), *(entry(each, each * 1.0, 10) for each in range(1, 60))]
    assert found(TenantLimits(tokens_per_minute=600), *takes).tokens_over == 0
    more = [*takes, entry(60, 59.0, 25)]
    assert found(TenantLimits(tokens_per_minute=600), *more).tokens_over == 25


def test_all_reserved_tokens_of_a_lost_reservation_count():
    takes = [entry(0, outcome="lost", tokens=0, reserved=550), entry(1, tokens=60)]
    assert found(TenantLimits(tokens_per_minute=600), *takes).tokens_over == 10


def test_a_request_that_an_edge_admitted_under_a_grant_is_counted_and_not_judged():
    takes = [entry(0, tokens=600), entry(1, tokens=60)]
    findings = found(TenantLimits(tokens_per_minute=600), *takes, deferred=["r-1"])
    assert (findings.requests, findings.deferred, findings.tokens_over) == (2, 1, 0)


def test_requests_beyond_a_limit_per_minute_are_counted():
    takes = [entry(each, each * 0.1) for each in range(12)]
    assert found(TenantLimits(requests_per_minute=10), *takes).requests_over == 2


def test_requests_beyond_a_limit_at_once_are_counted_and_successors_are_not():
    takes = [entry(0, 0.0, lasts=1.0), entry(1, 1.0, lasts=1.0), entry(2, 1.0, lasts=0.5), entry(3, 1.2, lasts=0.1)]
    assert found(TenantLimits(concurrent_requests=2), *takes).concurrent_over == 1


def test_tenants_without_limits_are_not_judged():
    assert found(TenantLimits(tokens_per_minute=1), entry(0, tenant="other")).requests == 0


def test_a_ticket_with_other_tokens_without_a_row_or_with_two_rows_is_found():
    rows = [entry(0), entry(1, tokens=9), entry(3), entry(4, ticket="t-3", tokens=0)]
    counts = {f"t-{each}": EngineCount(10) for each in range(5)}
    findings = check_engine_counts(rows, counts, {"t-0", "t-1", "t-2", "t-3"})
    assert (findings.compared, findings.different, findings.uncharged, findings.charged_twice) == (4, 1, 1, 1)


def test_a_ticket_whose_edge_died_is_not_compared():
    lost = entry(0, outcome="lost", tokens=0)
    assert check_engine_counts([lost], {"t-0": EngineCount(7)}, set()).compared == 0


def test_tokens_after_a_stop_string_are_not_charged_and_those_after_a_cancel_are():
    counts = {"t-0": EngineCount(11, is_stopped=True)}
    assert check_engine_counts([entry(0)], counts, {"t-0"}).different == 0
    assert check_engine_counts([entry(0, outcome="cancelled", tokens=11)], counts, {"t-0"}).different == 0
    assert check_engine_counts([entry(0, outcome="cancelled")], counts, {"t-0"}).different == 1
    assert check_engine_counts([entry(0, tokens=12)], counts, {"t-0"}).different == 1
    assert check_engine_counts([entry(0)], {"t-0": EngineCount(11)}, {"t-0"}).different == 1


def test_a_ticket_that_was_cut_off_from_its_worker_pays_at_most_what_was_made():
    counts = {"t-0": EngineCount(10, is_cut_off=True)}
    for tokens, different in ((0, 0), (9, 0), (10, 0), (11, 1)):
        findings = check_engine_counts([entry(0, tokens=tokens)], counts, {"t-0"})
        assert (findings.cut_off, findings.different) == (1, different)


def test_a_ticket_is_cut_off_if_its_edge_lost_the_stream_to_its_worker_before_its_end(tmp_path):
    def at(second):
        return f"2026-01-01T00:00:{second:02}+00:00"

    edge = {"instance_id": "edge-1.a"}
    done = {**edge, "event": "ticket_done", "total_s": 5.0}
    events = [
        {**edge, "event": "link_down", "peer": "worker-1.a", "timestamp": at(10)},
        {**done, "ticket_id": "cut", "timestamp": at(12)},
        {**done, "ticket_id": "earlier", "timestamp": at(8)},
        {**done, "ticket_id": "later", "timestamp": at(17)},
        {**done, "ticket_id": "elsewhere", "timestamp": at(12)},
        {**done, "instance_id": "edge-2.a", "ticket_id": "of another edge", "timestamp": at(12)},
    ]
    (tmp_path / "edge-1.log").write_bytes(b"\n".join(map(orjson.dumps, events)))
    workers = {each: {"worker-1.a"} for each in ("cut", "earlier", "later", "of another edge")}
    assert cut_off_tickets(tmp_path, workers | {"elsewhere": {"worker-2.a"}}) == {"cut"}


def missed(*charges, unsettled=()):
    """The lines that a ledger misses after one answer of two tokens, whose ticket is `t`."""
    answer = TokenTranscript(request_id="r", indexes=[0, 1])
    lines = answer_charge_lines([answer], charges, {"t": "r", "u": "other", "v": "r"}, unsettled)
    return [each.figure for each in lines if not each.is_met]


CHARGED = LedgerCharge("t", 5, 2, "stop")
LOST = LedgerCharge("t", 0, 0, "lost")


def test_an_answer_is_charged_once():
    assert missed(CHARGED) == []
    assert missed(LOST) == missed() == ["tokens seen and not charged", "prompts not charged"]
    assert missed(CHARGED, CHARGED) == [
        "tokens charged beyond those seen",
        "prompts charged twice",
        "tickets charged twice",
    ]


def test_an_answer_whose_edge_died_at_its_end_is_charged_once_or_settled_as_lost():
    assert missed(CHARGED, unsettled={"t"}) == missed(LOST, unsettled={"t", "u"}) == []
    of_earlier_edge = LedgerCharge("v", 0, 0, "lost")
    assert missed(unsettled={"t"}) == ["of them: neither charged nor settled as lost"]
    assert missed(of_earlier_edge, unsettled={"t"}) == ["of them: neither charged nor settled as lost"]
    assert missed(CHARGED, CHARGED, unsettled={"t"}) == [
        "of them: tokens charged beyond those seen",
        "of them: prompts charged twice",
        "of them: tickets charged twice",
    ]
    assert missed(LedgerCharge("t", 5, 3, "stop"), unsettled={"t"}) == ["of them: tokens charged beyond those seen"]
