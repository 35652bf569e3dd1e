"""Answers over several requests: the prompt and each token are charged once, in any order of settlements and losses."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.answer_billing import (
    MAX_ANSWERS,
    MAX_CONTINUATIONS_PER_ANSWER,
    AnswerLedger,
    DelegatedAnswers,
    merge_intervals,
)
from penstock.auth.quota.reservation import OUTCOME_LOST, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable

NOW_UNIX_S = 1_800_000_000.0
PROMPT_TOKENS = 10
MAX_OUTPUT_TOKENS = 1_000  # output limit of each request


def request_of(
    request_id, answer_id="", emitted=0, *, tenant="acme", fingerprint=b"f", prompt=PROMPT_TOKENS, is_delegated=False
) -> ReservationRequest:
    return ReservationRequest(
        request_id=request_id,
        tenant_id=tenant,
        key_id="k",
        edge_id=f"edge-{request_id}",
        model="m",
        prompt_tokens=prompt,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        answer_id=answer_id,
        emitted_tokens=emitted,
        fingerprint=fingerprint,
        is_delegated=is_delegated,
    )


def table_with(*requests: ReservationRequest) -> ReservationTable:
    table = ReservationTable(ttl=100.0)
    for tenant in ("acme", "blue"):
        table.put_tenant(Tenant(tenant_id=tenant), NOW_UNIX_S)
    for each in requests:
        table.reserve(each, each.request_id, NOW_UNIX_S)
    return table


def settle(table: ReservationTable, request_id, made, *, prompt=PROMPT_TOKENS, outcome="cancelled"):
    charge = table.settle(request_id, prompt, made, outcome, NOW_UNIX_S)
    return charge.prompt_tokens, charge.output_tokens


def total(table: ReservationTable, tenant="acme"):
    balance = table.quota(tenant).balance
    return balance.prompt_tokens, balance.output_tokens


def test_the_answer_of_a_dead_edge_is_charged_to_the_request_that_continues_it():
    table = table_with(request_of("a"), request_of("b", "a", 30))
    table.expire_edge("edge-a", NOW_UNIX_S)
    assert settle(table, "b", 20, outcome="stop") == (PROMPT_TOKENS, 50)


def test_the_prompt_of_an_interrupted_answer_is_charged_once():
    table = table_with(request_of("a"), request_of("b", "a", 30))
    assert settle(table, "a", 30) == (PROMPT_TOKENS, 30)
    assert settle(table, "b", 20, outcome="stop") == (0, 20)


def test_the_prompt_of_an_answer_that_its_client_named_is_charged_once():
    table = table_with(request_of("a", "chosen"), request_of("b", "chosen"), request_of("c", "another"))
    assert settle(table, "b", 50, outcome="stop") == (PROMPT_TOKENS, 50)
    assert settle(table, "a", 3) == (0, 3)
    assert settle(table, "c", 50, outcome="stop") == (PROMPT_TOKENS, 50)


def test_a_late_settlement_adds_only_tokens_that_were_not_charged():
    table = table_with(request_of("a"), request_of("b", "a", 30))
    table.expire_edge("edge-a", NOW_UNIX_S)
    settle(table, "b", 20)
    assert settle(table, "a", 35) == (0, 5)  # five tokens were generated, lost and generated again


def test_a_complete_answer_of_a_dead_edge_is_charged_to_a_continuation_without_tokens():
    table = table_with(request_of("a"), request_of("b", "a", 30))
    table.expire_edge("edge-a", NOW_UNIX_S)
    assert settle(table, "b", 0, prompt=0, outcome="length") == (PROMPT_TOKENS, 30)


def test_a_continuation_that_never_ran_costs_nothing():
    table = table_with(request_of("a"), request_of("b", "a", 30))
    assert settle(table, "b", 0, prompt=0, outcome="shed") == (0, 0)
    assert settle(table, "a", 30) == (PROMPT_TOKENS, 30)


def test_a_request_without_an_answer_id_is_charged_for_its_tokens():
    table = table_with(request_of("a", emitted=30))
    assert settle(table, "a", 20) == (PROMPT_TOKENS, 20)


@pytest.mark.parametrize(
    "named",
    [
        request_of("b", "unknown", 30),
        request_of("b", "a", 30, tenant="blue"),
        request_of("b", "a", 30, fingerprint=b"another prompt"),
    ],
)
def test_the_answer_id_of_another_answer_is_charged_in_full(named):
    table = table_with(request_of("a"), named)
    settle(table, "a", 100)
    assert settle(table, "b", 20) == (PROMPT_TOKENS, 50)


def test_claimed_tokens_are_free_only_if_they_were_charged_before():
    table = table_with(request_of("a"), request_of("b", "a", 500))
    settle(table, "a", 1)
    assert settle(table, "b", 20) == (0, 519)


def test_tokens_that_are_generated_again_are_charged_again():
    table = table_with(request_of("a"), request_of("b", "a", 0))
    settle(table, "a", 1_000)
    assert settle(table, "b", 1_000) == (0, 1_000)


def test_an_answer_has_a_bounded_number_of_continuations_for_one_prompt():
    table = table_with(request_of("a"))
    settle(table, "a", 1)
    for number in range(MAX_CONTINUATIONS_PER_ANSWER + 2):
        table.reserve(request_of(f"b{number}", "a", 1), f"b{number}", NOW_UNIX_S)
    charges = [settle(table, f"b{number}", 1) for number in range(MAX_CONTINUATIONS_PER_ANSWER + 2)]
    assert charges == [(0, 1)] * MAX_CONTINUATIONS_PER_ANSWER + [(PROMPT_TOKENS, 2)] * 2


def test_the_bucket_counts_generated_tokens_and_not_charged_ones():
    table = ReservationTable(ttl=100.0)
    table.put_tenant(Tenant(tenant_id="acme", tokens_per_minute=PROMPT_TOKENS + MAX_OUTPUT_TOKENS), NOW_UNIX_S)
    table.reserve(request_of("b", "unknown", 700), "b", NOW_UNIX_S)
    assert settle(table, "b", 10) == (PROMPT_TOKENS, 710)
    assert table.quota("acme").tokens_left(NOW_UNIX_S) == MAX_OUTPUT_TOKENS - 10


def test_a_bounded_number_of_answers_is_kept():
    answers = AnswerLedger()
    for number in range(MAX_ANSWERS + 1):
        answers.charge(request_of(str(number)), PROMPT_TOKENS, 1, "stop")
    assert len(answers) == MAX_ANSWERS
    assert answers.charge(request_of("b", str(MAX_ANSWERS), 1), PROMPT_TOKENS, 1, "stop") == (0, 1)
    assert answers.charge(request_of("c", "0", 1), PROMPT_TOKENS, 1, "stop") == (PROMPT_TOKENS, 2)


# Answers of lines, whose requests the mesh repeats.


def run_of(number: int, line="line", emitted=0, **more) -> ReservationRequest:
    """Return one run of a line."""
    return request_of(f"{line}-{number}", line, emitted, is_delegated=True, **more)


def test_a_line_that_runs_twice_is_charged_once():
    table = table_with(run_of(1), run_of(2))
    assert settle(table, "line-1", 100, outcome="stop") == (PROMPT_TOKENS, 100)
    assert settle(table, "line-2", 100, outcome="stop") == (0, 0)
    assert total(table) == (PROMPT_TOKENS, 100)


def test_a_line_is_charged_for_the_tokens_that_its_lost_run_had_generated():
    table = table_with(run_of(1), run_of(2, emitted=30))
    table.expire_edge("edge-line-1", NOW_UNIX_S)
    assert settle(table, "line-2", 20, outcome="stop") == (PROMPT_TOKENS, 50)
    assert settle(table, "line-1", 35) == (0, 0)


def test_a_line_may_be_shed_any_number_of_times_and_is_charged_once():
    table = table_with()
    for number in range(3 * MAX_CONTINUATIONS_PER_ANSWER):
        table.reserve(run_of(number), f"line-{number}", NOW_UNIX_S)
        assert settle(table, f"line-{number}", 0, prompt=0, outcome="shed") == (0, 0)
    for number, charge in ((90, (PROMPT_TOKENS, 7)), (91, (0, 0))):
        table.reserve(run_of(number), f"line-{number}", NOW_UNIX_S)
        assert settle(table, f"line-{number}", 7, outcome="stop") == charge


@pytest.mark.parametrize(
    "other",
    [
        run_of(2, "other"),
        run_of(2, tenant="blue"),
        run_of(2, fingerprint=b"another prompt"),
        request_of("line-2", "line"),  # of a client that names the line
    ],
    ids=["another line", "another tenant", "another prompt", "a client"],
)
def test_no_other_request_is_free_because_of_a_line(other):
    table = table_with(run_of(1), other)
    settle(table, "line-1", 100)
    assert settle(table, other.request_id, 100) == (PROMPT_TOKENS, 100)


def test_a_bounded_number_of_lines_is_kept_beside_the_answers_of_clients():
    lines = DelegatedAnswers(max_answers=2)
    for key in (b"a", b"b", b"a", b"c"):
        lines.charge(key, "acme", 1, 1)
    assert len(lines) == 2
    assert [lines.charge(key, "acme", 1, 1) for key in (b"a", b"b")] == [(0, 0), (1, 1)]
    answers = AnswerLedger()
    answers.charge(request_of("a"), PROMPT_TOKENS, 1, "stop")
    for number in range(MAX_ANSWERS + 1):
        answers.charge(run_of(1, str(number)), PROMPT_TOKENS, 1, "stop")
    assert len(answers) == MAX_ANSWERS + 2
    assert answers.charge(request_of("b", "a", 1), PROMPT_TOKENS, 1, "stop") == (0, 1)
    answers.forget("acme".__eq__)
    assert len(answers) == 0


@given(
    parts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
    seed=st.randoms(use_true_random=False),
)
def test_a_line_is_charged_for_its_last_token_in_any_order_of_settlements(parts, seed):
    table = table_with(*(run_of(number, emitted=start) for number, (start, _) in enumerate(parts)))
    order = list(range(len(parts)))
    seed.shuffle(order)
    for number in order:
        assert min(settle(table, f"line-{number}", parts[number][1])) >= 0
    assert total(table) == (PROMPT_TOKENS, max(start + made for start, made in parts))


# Requests of an answer, each from the tokens that the client had before: (resumed at, generated, edge lost).
ANSWER_PARTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), min_size=1, max_size=4)


def expected_charge(parts) -> tuple[int, int]:
    """The definition: all tokens that settled requests generated, and received tokens that none of them generated."""
    settled = [(start, made) for start, made, is_lost in parts if not is_lost]
    generated = {index for start, made in settled for index in range(start, start + made)}
    received = {index for start, _ in settled for index in range(start)}
    return (PROMPT_TOKENS if settled else 0), sum(made for _, made in settled) + len(received - generated)


def settle_parts(parts, order) -> tuple[ReservationTable, list[tuple[int, int]]]:
    requests = [request_of(str(number), "0" if number else "", start) for number, (start, _, _) in enumerate(parts)]
    table, charges = table_with(*requests), []
    for number in order:
        _, made, is_lost = parts[number]
        if is_lost:
            [charge] = table.expire_edge(f"edge-{number}", NOW_UNIX_S)
            assert charge.outcome == OUTCOME_LOST
        else:
            charges.append(settle(table, str(number), made))
    return table, charges


@given(parts=ANSWER_PARTS)
def test_an_answer_is_charged_once_in_any_order_of_settlements(parts):
    parts = [(0, *parts[0][1:]), *parts[1:]]
    for order in permutations(range(len(parts))):
        table, charges = settle_parts(parts, order)
        assert all(prompt >= 0 and output >= 0 for prompt, output in charges)
        assert total(table) == expected_charge(parts)


@given(parts=ANSWER_PARTS, seed=st.randoms(use_true_random=False))
def test_late_settlements_correct_the_charges_completely(parts, seed):
    parts = [(0, *parts[0][1:]), *parts[1:]]
    order = list(range(len(parts)))
    seed.shuffle(order)
    table, _ = settle_parts(parts, order)
    for number in order:
        if parts[number][2]:
            assert min(settle(table, str(number), parts[number][1])) >= 0
    assert total(table) == expected_charge([(start, made, False) for start, made, _ in parts])


@given(makes=st.lists(st.integers(0, 40), min_size=1, max_size=6), losses=st.lists(st.booleans(), min_size=6))
def test_an_answer_without_gaps_costs_its_prompt_and_its_length(makes, losses):
    """Each request ends exactly where the next one continues; the last one finishes."""
    parts, received = [], 0
    for made, is_lost in zip(makes, losses, strict=False):
        parts.append((received, made, is_lost))
        received += made
    parts.append((received, 1, False))
    table, _ = settle_parts(parts, range(len(parts)))
    assert total(table) == (PROMPT_TOKENS, received + 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_merged_intervals_cover_the_same_tokens_with_the_fewest_intervals(added):
    kept, covered = (), set()
    for start, length in added:
        kept = merge_intervals(kept, start, start + length)
        covered |= set(range(start, start + length))
    assert {index for start, end in kept for index in range(start, end)} == covered
    assert all(before[1] < after[0] for before, after in pairwise(kept))


def test_ids_with_equal_concatenations_name_different_answers():
    answers = AnswerLedger()
    for each in (
        request_of("b", tenant="a", fingerprint=b"c"),
        request_of("bc", tenant="a", fingerprint=b""),
        request_of("c", tenant="ab"),
    ):
        answers.charge(each, PROMPT_TOKENS, 1, "stop")
    assert len(answers) == 3
