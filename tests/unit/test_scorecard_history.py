"""The checker of the scorecard finds what it is there to find."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.proofs.card import ProofCard, at_most, exit_code, percentile
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import ChargeFindings, LedgerCharge, check_charges
from penstock.proofs.checks.transcript import TokenTranscript, TranscriptFindings, check_transcripts
from penstock.proofs.lines import pause_lines
from penstock.proofs.requests import request_catalog, with_stop

TOKENS = [(index, 100 + index) for index in range(8)]


def history(tokens=TOKENS, **given):
    made = TokenTranscript(request_index=0, request_id="r", started_at=10.0)
    for number, (index, token_id) in enumerate(tokens):
        made.record(11.0 + number, index, (token_id,), chr(token_id))
    made.finish_reason, made.attempts, made.ended_at = "LENGTH", 1, 20.0
    for name, value in given.items():
        setattr(made, name, value)
    return made


def found(*histories):
    return check_transcripts(histories, [history()])


def test_a_history_like_the_calm_one_has_no_findings():
    assert found(history(), history()) == TranscriptFindings(requests=2, identical=2)


def test_a_missing_token_is_found():
    assert found(history(TOKENS[:3] + TOKENS[4:])) == TranscriptFindings(requests=1, missing=1)


def test_a_tail_that_never_came_is_missing():
    assert found(history(TOKENS[:6])) == TranscriptFindings(requests=1, missing=2)


def test_a_doubled_token_is_found():
    assert found(history([*TOKENS[:4], TOKENS[3], *TOKENS[4:]])) == TranscriptFindings(requests=1, duplicated=1)


def test_a_reordered_token_is_found():
    assert found(history([TOKENS[0], TOKENS[2], TOKENS[1], *TOKENS[3:]])) == TranscriptFindings(requests=1, reordered=1)


def test_a_changed_token_is_found():
    assert found(history([*TOKENS[:7], (7, 999)])) == TranscriptFindings(requests=1, changed=1)


def test_a_token_beyond_the_calm_answer_is_changed():
    assert found(history([*TOKENS, (8, 108)])) == TranscriptFindings(requests=1, changed=1)


@pytest.mark.parametrize("given", [{"text": "defghij"}, {"finish": "STOP"}])
def test_the_same_tokens_with_another_text_or_ending_are_not_identical(given):
    assert found(history(**given)) == TranscriptFindings(requests=1)


def test_a_failure_is_counted_with_its_reason_and_what_it_had_is_still_checked():
    failed = history([TOKENS[0], TOKENS[1], TOKENS[1], TOKENS[4]], failure="UNAVAILABLE / GONE: away", finish="")
    failure_reasons = [f"{failed.request_id}: UNAVAILABLE / GONE: away"]
    assert found(failed) == TranscriptFindings(
        requests=1, failures=1, doubled=1, missing=2, failure_reasons=failure_reasons
    )


def test_a_request_that_never_ended_is_a_failure():
    assert found(history(finish="")).failures == 1


COUNTS = ("missing", "doubled", "reordered", "changed")
CAME = st.lists(st.tuples(st.integers(0, 11), st.sampled_from([0, 0, 0, 1])), max_size=25)


@given(came=CAME, finish=st.sampled_from(["", "LENGTH"]), owed=st.integers(0, 10))
def test_counts_are_what_their_words_say_whatever_came(came, finish, owed):
    tokens = [(index, 100 + index + wrong) for index, wrong in came]
    calm = history([(index, 100 + index) for index in range(owed)])
    indexes = [index for index, _ in came]
    found = check_transcripts([history(tokens, finish=finish)], [calm])
    expected = {
        "missing": len(set(range(owed if finish else max(indexes, default=-1) + 1)) - set(indexes)),
        "doubled": sum(index in indexes[:place] for place, index in enumerate(indexes)),
        "reordered": sum(
            index not in indexes[:place] and any(index < before for before in indexes[:place])
            for place, index in enumerate(indexes)
        ),
        "changed": sum(wrong or index >= owed for index, wrong in came),
    }
    assert {name: getattr(found, name) for name in COUNTS} == expected


def charges(*rows):
    named = {"t1": "r", "t2": "r", "t9": "another"}
    return check_charges([history()], [LedgerCharge(*row) for row in rows], named)


def test_a_request_charged_for_what_was_seen_has_no_findings():
    assert charges(("t1", 5, 8, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)


def test_a_ticket_charged_twice_is_found():
    findings = charges(("t1", 5, 8, "length"), ("t1", 5, 8, "length"))
    assert (findings.double_charged_tickets, findings.overcharged_tokens, findings.double_charged_prompts) == (1, 8, 1)


def test_a_request_charged_in_full_by_two_tickets_is_found():
    assert charges(("t1", 5, 8, "length"), ("t2", 0, 8, "length")).overcharged_tokens == 8


def test_two_attempts_that_share_prompt_and_tokens_are_charged_once():
    assert charges(("t1", 5, 3, "cancelled"), ("t2", 0, 5, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)


def test_an_attempt_that_was_lost_is_charged_with_the_one_that_went_on():
    assert charges(("t1", 0, 0, "lost"), ("t2", 5, 8, "length")) == ChargeFindings(seen_tokens=8, charged_tokens=8)
    assert charges(("t1", 0, 0, "lost"), ("t2", 5, 5, "length")).undercharged_tokens == 3


def test_a_prompt_is_charged_with_one_attempt():
    assert charges(("t1", 5, 3, "cancelled"), ("t2", 5, 5, "length")).double_charged_prompts == 1
    assert charges(("t1", 0, 8, "length")).uncharged_prompts == 1


def test_charges_for_requests_that_no_client_made_are_strays():
    assert charges(("t1", 5, 8, "length"), ("t9", 5, 4, "length"), ("t8", 5, 2, "length")).unattributed_tokens == 6


FAULT = InjectedFault(
    name="worker-1",
    kind="SIGKILL",
    injected_at=12.0,
    recovered_at=14.0,
    has_taken_effect=True,
    active_requests=8,
    tokens_before=50,
)


def test_a_run_whose_faults_happened_under_load_is_not_void():
    assert void_reason([FAULT, FAULT], expected=2, streams=8) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [({"has_happened": False}, "really happened"), ({"under_way": 3}, "under way"), ({"tokens": 0}, "no token")],
)
def test_a_run_without_its_fault_or_its_load_is_void(change, why):
    assert why in void_reason([FAULT, replace(FAULT, **change)], expected=2, streams=8)


def test_void_is_told_apart_from_missed_and_a_miss_weighs_more():
    met = ProofCard(proof="a", lines=[at_most("x", 1.0, 1.0)])
    missed = ProofCard(proof="b", lines=[at_most("x", 1.1, 1.0)])
    void = ProofCard(proof="c", void_reason="no load")
    assert [exit_code([met]), exit_code([met, void]), exit_code([met, void, missed])] == [0, 3, 1]


def test_gaps_are_those_that_a_fault_has_added():
    calm = [history() for _ in range(10)]
    slow = history()
    slow.arrivals[5:] = [each + 3.0 for each in slow.arrivals[5:]]
    lines = {line.figure: line.measured for line in pause_lines([history(), slow], calm, [FAULT])}
    assert (lines["requests under way at a fault"], lines["of them interrupted"]) == (2, 1)
    assert lines["P99 gap added to the interrupted"] == pytest.approx(3.0)


def test_a_percentile_is_a_value_that_was_measured():
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
    assert percentile([], 0.5) == 0.0


def test_the_catalog_is_the_same_for_the_same_seed_and_a_stop_comes_from_the_answer():
    assert request_catalog(6, 40, seed=1) == request_catalog(6, 40, seed=1) != request_catalog(6, 40, seed=2)
    assert with_stop(request_catalog(2, 40, seed=1)[1], "abcdefghij").options["stop"] == ["ghij"]
