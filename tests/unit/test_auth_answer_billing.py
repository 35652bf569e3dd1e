"""Answers that take several requests: the prompt once, each token once, in any order of settlements and losses."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.answer_billing import (
    MAX_ANSWERS,
    MAX_CONTINUATIONS_PER_ANSWER,
    AnswerLedger,
    merge_intervals,
)
from penstock.auth.quota.reservation import OUTCOME_LOST, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable

NOW = 1_800_000_000.0  # s
PROMPT = 10
LIMIT = 1_000  # output tokens that each request may make


def ask(request_id, answer_id="", emitted=0, *, tenant="acme", fingerprint=b"f", prompt=PROMPT) -> ReservationRequest:
    return ReservationRequest(
        request_id=request_id,
        tenant_id=tenant,
        key_id="k",
        edge_id=f"edge-{request_id}",
        model="m",
        prompt_tokens=prompt,
        max_output_tokens=LIMIT,
        answer_id=answer_id,
        emitted_tokens=emitted,
        fingerprint=fingerprint,
    )


def books_for(*asks: ReservationRequest) -> ReservationTable:
    books = ReservationTable(ttl=100.0)
    for tenant in ("acme", "blue"):
        books.put_tenant(Tenant(tenant_id=tenant), NOW)
    for each in asks:
        books.reserve(each, each.request_id, NOW)
    return books


def settle(books: ReservationTable, request_id, made, *, prompt=PROMPT, outcome="cancelled"):
    charge = books.settle(request_id, prompt, made, outcome, NOW)
    return charge.prompt_tokens, charge.output_tokens


def total(books: ReservationTable, tenant="acme"):
    balance = books.quota(tenant).balance
    return balance.prompt_tokens, balance.output_tokens


def test_the_answer_of_a_dead_edge_is_charged_to_the_request_that_continues_it():
    books = books_for(ask("a"), ask("b", "a", 30))
    books.expire_edge("edge-a", NOW)
    assert settle(books, "b", 20, outcome="stop") == (PROMPT, 50)


def test_the_prompt_of_an_interrupted_answer_is_charged_once():
    books = books_for(ask("a"), ask("b", "a", 30))
    assert settle(books, "a", 30) == (PROMPT, 30)
    assert settle(books, "b", 20, outcome="stop") == (0, 20)


def test_a_late_settlement_adds_only_tokens_that_were_not_charged():
    books = books_for(ask("a"), ask("b", "a", 30))
    books.expire_edge("edge-a", NOW)
    settle(books, "b", 20)
    assert settle(books, "a", 35) == (0, 5)  # five were made and never came, and were made again


def test_a_complete_answer_of_a_dead_edge_is_charged_to_a_continuation_without_tokens():
    books = books_for(ask("a"), ask("b", "a", 30))
    books.expire_edge("edge-a", NOW)
    assert settle(books, "b", 0, prompt=0, outcome="length") == (PROMPT, 30)


def test_a_continuation_that_never_ran_costs_nothing():
    books = books_for(ask("a"), ask("b", "a", 30))
    assert settle(books, "b", 0, prompt=0, outcome="shed") == (0, 0)
    assert settle(books, "a", 30) == (PROMPT, 30)


def test_a_request_without_an_answer_id_is_charged_for_its_tokens():
    books = books_for(ask("a", emitted=30))
    assert settle(books, "a", 20) == (PROMPT, 20)


@pytest.mark.parametrize(
    "named",
    [
        ask("b", "nobody", 30),
        ask("b", "a", 30, tenant="blue"),
        ask("b", "a", 30, fingerprint=b"another prompt"),
    ],
)
def test_the_answer_id_of_another_answer_is_charged_in_full(named):
    books = books_for(ask("a"), named)
    settle(books, "a", 100)
    assert settle(books, "b", 20) == (PROMPT, 50)


def test_claimed_tokens_are_free_only_if_they_were_charged_before():
    books = books_for(ask("a"), ask("b", "a", 500))
    settle(books, "a", 1)
    assert settle(books, "b", 20) == (0, 519)


def test_tokens_that_are_generated_again_are_charged_again():
    books = books_for(ask("a"), ask("b", "a", 0))
    settle(books, "a", 1_000)
    assert settle(books, "b", 1_000) == (0, 1_000)


def test_an_answer_has_a_bounded_number_of_continuations_for_one_prompt():
    books = books_for(ask("a"))
    settle(books, "a", 1)
    for number in range(MAX_CONTINUATIONS_PER_ANSWER + 2):
        books.reserve(ask(f"b{number}", "a", 1), f"b{number}", NOW)
    paid = [settle(books, f"b{number}", 1) for number in range(MAX_CONTINUATIONS_PER_ANSWER + 2)]
    assert paid == [(0, 1)] * MAX_CONTINUATIONS_PER_ANSWER + [(PROMPT, 2)] * 2


def test_the_bucket_counts_generated_tokens_and_not_charged_ones():
    books = ReservationTable(ttl=100.0)
    books.put_tenant(Tenant(tenant_id="acme", tokens_per_minute=PROMPT + LIMIT), NOW)
    books.reserve(ask("b", "nobody", 700), "b", NOW)
    assert settle(books, "b", 10) == (PROMPT, 710)
    assert books.quota("acme").tokens_left(NOW) == LIMIT - 10


def test_a_bounded_number_of_answers_is_kept():
    answers = AnswerLedger()
    for number in range(MAX_ANSWERS + 1):
        answers.charge(ask(str(number)), PROMPT, 1, "stop")
    assert len(answers) == MAX_ANSWERS
    assert answers.charge(ask("b", str(MAX_ANSWERS), 1), PROMPT, 1, "stop") == (0, 1)
    assert answers.charge(ask("c", "0", 1), PROMPT, 1, "stop") == (PROMPT, 2)


# Each request of an answer goes on from what its client had of those before: (resumed at, made, was its edge lost).
PARTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), min_size=1, max_size=4)


def owed(parts) -> tuple[int, int]:
    """By the definition, index by index: all that settled requests made, and what was had and made by none of them."""
    settled = [(start, made) for start, made, is_lost in parts if not is_lost]
    made_by_some = {index for start, made in settled for index in range(start, start + made)}
    had = {index for start, _ in settled for index in range(start)}
    return (PROMPT if settled else 0), sum(made for _, made in settled) + len(had - made_by_some)


def book(parts, order) -> tuple[ReservationTable, list[tuple[int, int]]]:
    asks = [ask(str(number), "0" if number else "", start) for number, (start, _, _) in enumerate(parts)]
    books, charges = books_for(*asks), []
    for number in order:
        _, made, is_lost = parts[number]
        if is_lost:
            [charge] = books.expire_edge(f"edge-{number}", NOW)
            assert charge.outcome == OUTCOME_LOST
        else:
            charges.append(settle(books, str(number), made))
    return books, charges


@given(parts=PARTS)
def test_an_answer_is_charged_once_in_any_order_of_settlements(parts):
    parts = [(0, *parts[0][1:]), *parts[1:]]
    for order in permutations(range(len(parts))):
        books, charges = book(parts, order)
        assert all(prompt >= 0 and output >= 0 for prompt, output in charges)
        assert total(books) == owed(parts)


@given(parts=PARTS, seed=st.randoms(use_true_random=False))
def test_late_settlements_correct_the_charges_completely(parts, seed):
    parts = [(0, *parts[0][1:]), *parts[1:]]
    order = list(range(len(parts)))
    seed.shuffle(order)
    books, _ = book(parts, order)
    for number in order:
        if parts[number][2]:
            assert min(settle(books, str(number), parts[number][1])) >= 0
    assert total(books) == owed([(start, made, False) for start, made, _ in parts])


@given(makes=st.lists(st.integers(0, 40), min_size=1, max_size=6), losses=st.lists(st.booleans(), min_size=6))
def test_an_answer_without_gaps_costs_its_prompt_and_its_length(makes, losses):
    """Each edge died or was cut exactly where its successor went on; the last one finished."""
    parts, had = [], 0
    for made, is_lost in zip(makes, losses, strict=False):
        parts.append((had, made, is_lost))
        had += made
    parts.append((had, 1, False))
    books, _ = book(parts, range(len(parts)))
    assert total(books) == (PROMPT, had + 1)


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
    for each in (ask("b", tenant="a", fingerprint=b"c"), ask("bc", tenant="a", fingerprint=b""), ask("c", tenant="ab")):
        answers.charge(each, PROMPT, 1, "stop")
    assert len(answers) == 3
