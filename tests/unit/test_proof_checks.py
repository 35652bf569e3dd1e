"""The checks of the proofs find missing, doubled and changed tokens, wrong charges and void runs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.transcript import TokenTranscript, TranscriptFindings, check_transcripts
from penstock.client.progress import TokenChunk
from penstock.proofs.card import ProofCard, at_most, exit_code, pause_lines
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import (
    ChargeFindings,
    LedgerCharge,
    check_charges,
    requests_of_several_tickets,
)
from penstock.proofs.requests import request_catalog, with_stop

TOKENS = [(index, 100 + index) for index in range(8)]


def received(tokens=TOKENS, **fields):
    transcript = TokenTranscript(0, 10.0, request_id="r")
    for number, (index, token_id) in enumerate(tokens):
        transcript.record_chunk(11.0 + number, TokenChunk(chr(token_id), (token_id,), index))
    transcript.finish_reason, transcript.ended_at = "LENGTH", 20.0
    for name, value in fields.items():
        setattr(transcript, name, value)
    return transcript


def found(*transcripts):
    return check_transcripts(transcripts, [received()])


def test_a_transcript_equal_to_its_reference_has_no_findings():
    assert found(received(), received()) == TranscriptFindings(requests=2, identical=2)


def test_a_missing_token_is_found():
    assert found(received(TOKENS[:3] + TOKENS[4:])) == TranscriptFindings(requests=1, missing=1)


def test_a_tail_that_was_not_received_is_missing():
    assert found(received(TOKENS[:6])) == TranscriptFindings(requests=1, missing=2)


def test_a_doubled_token_is_found():
    assert found(received([*TOKENS[:4], TOKENS[3], *TOKENS[4:]])) == TranscriptFindings(requests=1, duplicated=1)


def test_a_reordered_token_is_found():
    assert found(received([TOKENS[0], TOKENS[2], TOKENS[1], *TOKENS[3:]])) == TranscriptFindings(
        requests=1, reordered=1
    )


def test_a_changed_token_is_found():
    assert found(received([*TOKENS[:7], (7, 999)])) == TranscriptFindings(requests=1, changed=1)


def test_a_token_beyond_the_reference_is_changed():
    assert found(received([*TOKENS, (8, 108)])) == TranscriptFindings(requests=1, changed=1)


@pytest.mark.parametrize("fields", [{"text": "defghij"}, {"finish_reason": "STOP"}])
def test_the_same_tokens_with_another_text_or_ending_are_not_identical(fields):
    assert found(received(**fields)) == TranscriptFindings(requests=1)


def test_a_failure_is_counted_with_its_reason_and_its_tokens_are_still_checked():
    failed = received(
        [TOKENS[0], TOKENS[1], TOKENS[1], TOKENS[4]], failure_text="UNAVAILABLE / GONE: away", finish_reason=""
    )
    failure_reasons = [f"{failed.request_id}: UNAVAILABLE / GONE: away"]
    assert found(failed) == TranscriptFindings(
        requests=1, failures=1, duplicated=1, missing=2, failure_reasons=failure_reasons
    )


def test_a_request_that_never_ended_is_a_failure():
    assert found(received(finish_reason="")).failures == 1


FINDING_COUNTS = ("missing", "duplicated", "reordered", "changed")
RECEIVED_TOKENS = st.lists(st.tuples(st.integers(0, 11), st.sampled_from([0, 0, 0, 1])), max_size=25)


@given(chunks=RECEIVED_TOKENS, finish=st.sampled_from(["", "LENGTH"]), expected_tokens=st.integers(0, 10))
def test_each_error_is_counted_by_its_definition(chunks, finish, expected_tokens):
    tokens = [(index, 100 + index + wrong) for index, wrong in chunks]
    reference = received([(index, 100 + index) for index in range(expected_tokens)])
    indexes = [index for index, _ in chunks]
    found = check_transcripts([received(tokens, finish_reason=finish)], [reference])
    expected = {
        "missing": len(set(range(expected_tokens if finish else max(indexes, default=-1) + 1)) - set(indexes)),
        "duplicated": sum(index in indexes[:place] for place, index in enumerate(indexes)),
        "reordered": sum(
            index not in indexes[:place] and any(index < before for before in indexes[:place])
            for place, index in enumerate(indexes)
        ),
        "changed": sum(wrong or index >= expected_tokens for index, wrong in chunks),
    }
    assert {name: getattr(found, name) for name in FINDING_COUNTS} == expected


def charges(*rows):
    named = {"t1": "r", "t2": "r", "t9": "another"}
    return check_charges([received()], [LedgerCharge(*row) for row in rows], named)


def test_a_request_charged_for_its_received_tokens_has_no_findings():
    assert charges(("t1", 5, 8, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)


def test_a_ticket_charged_twice_is_found():
    findings = charges(("t1", 5, 8, "length"), ("t1", 5, 8, "length"))
    assert (findings.double_charged_tickets, findings.overcharged_tokens, findings.double_charged_prompts) == (1, 8, 1)


def test_a_request_charged_in_full_by_two_tickets_is_found():
    assert charges(("t1", 5, 8, "length"), ("t2", 0, 8, "length")).overcharged_tokens == 8


def test_two_attempts_that_share_prompt_and_tokens_are_charged_once():
    assert charges(("t1", 5, 3, "cancelled"), ("t2", 0, 5, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)


def test_requests_of_which_edges_have_settled_several_tickets_are_found():
    named = {"t1": "r", "t2": "r", "t3": "other", "t4": "other"}
    rows = [LedgerCharge(ticket_id, 5, 8, "length") for ticket_id in ("t1", "t2", "t3", "t9")]
    rows.append(LedgerCharge("t4", 0, 0, "lost"))
    assert requests_of_several_tickets(rows, named) == {"r"}


def test_a_lost_attempt_is_charged_with_its_continuation():
    assert charges(("t1", 0, 0, "lost"), ("t2", 5, 8, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)
    assert charges(("t1", 0, 0, "lost"), ("t2", 5, 5, "length")).undercharged_tokens == 3


def test_a_prompt_is_charged_with_one_attempt():
    assert charges(("t1", 5, 3, "cancelled"), ("t2", 5, 5, "length")).double_charged_prompts == 1
    assert charges(("t1", 0, 8, "length")).uncharged_prompts == 1


def test_charges_for_requests_that_no_client_sent_are_unattributed():
    assert charges(("t1", 5, 8, "length"), ("t9", 5, 4, "length"), ("t8", 5, 2, "length")).unattributed_tokens == 6


INJECTED_FAULT = InjectedFault(
    name="worker-1",
    kind="SIGKILL",
    injected_at=12.0,
    recovered_at=14.0,
    has_taken_effect=True,
    active_requests=8,
    tokens_before=50,
)


def test_a_run_whose_faults_happened_under_load_is_not_void():
    assert void_reason([INJECTED_FAULT, INJECTED_FAULT], expected=2, streams=8) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"has_taken_effect": False}, "took effect"),
        ({"active_requests": 3}, "were active"),
        ({"tokens_before": 0}, "no token"),
    ],
)
def test_a_run_without_its_fault_or_its_load_is_void(change, why):
    assert why in void_reason([INJECTED_FAULT, replace(INJECTED_FAULT, **change)], expected=2, streams=8)


def test_a_miss_takes_precedence_over_a_void_run_in_the_exit_code():
    met = ProofCard(proof="a", lines=[at_most("x", 1.0, 1.0)])
    missed = ProofCard(proof="b", lines=[at_most("x", 1.1, 1.0)])
    void = ProofCard(proof="c", void_reason="no load")
    assert [exit_code([met]), exit_code([met, void]), exit_code([met, void, missed])] == [0, 3, 1]


def test_gaps_are_those_that_a_fault_has_added():
    baseline = [received() for _ in range(10)]
    slow = received()
    slow.arrivals[5:] = [each + 3.0 for each in slow.arrivals[5:]]
    lines = {line.figure: line.measured for line in pause_lines([received(), slow], baseline, [INJECTED_FAULT])}
    assert (lines["requests active during a fault"], lines["of them interrupted"]) == (2, 1)
    assert lines["P99 gap added to the interrupted"] == pytest.approx(3.0)


def test_the_catalog_is_the_same_for_the_same_seed_and_a_stop_comes_from_the_answer():
    assert request_catalog(6, 40, seed=1) == request_catalog(6, 40, seed=1) != request_catalog(6, 40, seed=2)
    assert with_stop(request_catalog(2, 40, seed=1)[1], "abcdefghij").options["stop"] == ["ghij"]
