"""Whether what clients saw, what was charged and what is left over is what was promised. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import NONE_ALLOWED, AllowedFailures
from penstock.faults.world.clients import ClientTranscript, TokenCountResult

LOST_OUTCOME = (
    "lost"  # outcome of a reservation whose edge died; charged nothing, for nobody can say what its client got
)
FINISHED_OUTCOMES = ("stop", "length")
CRASHED_REASON = "ENGINE_CRASHED"
CONNECTION_LOST = "CONNECTION_LOST"  # what a client says by itself
NO_TICKETS: Mapping[int, str] = MappingProxyType({})
MAX_CRASHES_PER_REQUEST = 2  # of a request that does it: the second tells it from those beside it

# Figures that are back at zero when nothing runs, by tier.
FIGURES_ZERO_AT_REST = {
    "edge": ("active_requests", "reservations_open", "held_bytes"),
    "auth": ("reservations", "reserved_tokens", "concurrent_requests", "store_pending"),
    "queue": ("waiting", "waiting_tokens", "offered", "running"),
    "scheduler": ("leases", "promised_blocks"),
    "worker": ("running", "waiting", "kv_blocks_used", "leases_expected", "leases_running", "runs_parked"),
}


class Violation(NamedTuple):
    """A broken promise: `kind` is one of few words, `text` says of what."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class LedgerRow(NamedTuple):
    """One row of auth's ledger."""

    reservation_id: str
    ticket_id: str
    reserved_prompt: int
    reserved_output: int
    prompt_tokens: int
    output_tokens: int
    outcome: str
    answer_id: str  # that it continues; empty: it begins one, named after the ticket


def check_answers(
    transcripts: Iterable[ClientTranscript], allowed: AllowedFailures = NONE_ALLOWED
) -> Iterator[Violation]:
    """`excused`: reasons for which a request may fail in this world, and when."""
    for number, seen in enumerate(transcripts):
        for kind, text in _answer_violations(seen, allowed):
            yield Violation(kind, f"request {number} ({len(seen.request.prompt)} prompt tokens): {text}")


def check_token_counts(
    results: Iterable[TokenCountResult], allowed: AllowedFailures = NONE_ALLOWED
) -> Iterator[Violation]:
    """`excused` as for answers."""
    for each in results:
        if not each.has_ended:
            yield Violation("endless", f"the size of {len(each.request.prompt)} tokens was never told")
        elif each.failure_text and not _is_allowed(each, allowed):
            yield Violation("failed", f"the size of {len(each.request.prompt)} tokens: {each.failure_text}")
        elif not each.failure_text and tuple(each.token_ids) != each.request.prompt:
            yield Violation("changed", f"{len(each.request.prompt)} tokens were counted as {each.token_ids}")


def _is_allowed(result: ClientTranscript | TokenCountResult, allowed: AllowedFailures) -> bool:
    """Whether its client was told in time what nobody could help, and when to come back; else a retry is in vain."""
    has_advice = result.retry_after is not None or result.failure_reason == CONNECTION_LOST
    return has_advice and any(result.ended_at in span for span in allowed.get(result.failure_reason, ()))


def _answer_violations(transcript: ClientTranscript, allowed: AllowedFailures) -> Iterator[Violation]:
    ask = transcript.request
    if not transcript.has_ended:
        yield Violation("endless", f"never ended; {len(transcript.token_ids)} tokens came")
        return
    if transcript.indexes != list(range(len(transcript.indexes))):
        yield Violation("order", f"indexes came as {transcript.indexes}")
    if ask.logprobs and transcript.logprobs != len(transcript.token_ids):
        yield Violation("logprobs", f"{transcript.logprobs} came with {len(transcript.token_ids)} tokens")
    if ask.seed is not None and transcript.seed not in (0, ask.seed):
        yield Violation("changed", f"ran with seed {transcript.seed}, asked was {ask.seed}")
    owed = oracle.expected_answer(
        ask.prompt, transcript.seed, ask.max_output_tokens, ignore_eos=ask.ignore_eos, stops=ask.stops
    )
    if transcript.finish_reason:
        yield from _differences(transcript, owed)
    else:
        yield from _partial_differences(transcript, owed, allowed)


def _differences(transcript: ClientTranscript, expected: oracle.ExpectedAnswer) -> Iterator[Violation]:
    """What differs in an answer that is whole."""
    if transcript.token_ids != expected.token_ids:
        yield Violation("changed", f"ids {transcript.token_ids}, owed {expected.token_ids}")
    if transcript.text != expected.text:
        yield Violation("changed", f"text {transcript.text!r}, owed {expected.text!r}")
    if transcript.finish_reason != expected.finish_reason:
        yield Violation("changed", f"ended by {transcript.finish_reason}, owed {expected.finish_reason}")
    assert transcript.usage
    prompt, output = transcript.usage
    if prompt != len(transcript.request.prompt) or transcript.prompt_tokens != prompt:
        yield Violation("usage", f"{prompt} prompt tokens told, {transcript.prompt_tokens} accepted")
    if output != len(transcript.token_ids) if transcript.attempts == 1 else output > len(transcript.token_ids):
        yield Violation("usage", f"{output} output tokens told, {len(transcript.token_ids)} came")


def _partial_differences(
    transcript: ClientTranscript, expected: oracle.ExpectedAnswer, allowed: AllowedFailures
) -> Iterator[Violation]:
    if transcript.token_ids != expected.token_ids[: len(transcript.token_ids)]:
        yield Violation("changed", f"ids {transcript.token_ids} do not begin {expected.token_ids}")
    if not expected.text.startswith(transcript.text):
        yield Violation("changed", f"text {transcript.text!r} does not begin {expected.text!r}")
    is_late = transcript.request.timeout_s is not None and transcript.failure_text.startswith("DEADLINE_EXCEEDED")
    is_slow = transcript.request.stall_after_tokens is not None and transcript.failure_reason == "CLIENT_TOO_SLOW"
    is_crasher = _is_poison(transcript) and transcript.failure_reason == CRASHED_REASON
    if not (transcript.has_cancelled or is_late or is_slow or is_crasher or _is_allowed(transcript, allowed)):
        yield Violation(
            "failed", f"{transcript.failure_text or 'ended without an ending'}, after {transcript.attempts} attempts"
        )


def check_charges(
    transcripts: Sequence[ClientTranscript],
    rows: Sequence[LedgerRow],
    tokens_made: Mapping[int, int],
    *,
    last_tickets: Mapping[int, str] = NO_TICKETS,
    may_have_lost_deferred: bool = False,
) -> Iterator[Violation]:
    """Hold the ledger against what clients saw.

    made:          tokens that engines made, by prompt length.
    last:          tickets by which requests were last asked for, by prompt length, where an edge died that may have
                   told a client of the end and not auth.
    has_lost_some: an edge may have died with what it had let in while auth was away.
    """
    by_length: dict[int, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        by_length[row.reserved_prompt].append(row)
        yield from _check_reserved(row)
    for seen in transcripts:
        length = len(seen.request.prompt)
        charged = by_length.pop(length, [])
        is_forgiven = any(row.outcome == LOST_OUTCOME and row.ticket_id == last_tickets.get(length) for row in charged)
        missing = () if may_have_lost_deferred or is_forgiven else _undercharged(seen, charged)
        for kind, text in (*_overcharged(charged, tokens_made.get(length, 0)), *missing):
            yield Violation(kind, f"request of {length} prompt tokens: {text}")
    for length, strays in by_length.items():
        yield Violation("charge", f"{len(strays)} charges for {length} prompt tokens, which nobody asked for")


def _check_reserved(row: LedgerRow) -> Iterator[Violation]:
    if row.outcome == LOST_OUTCOME and (row.prompt_tokens or row.output_tokens):
        yield Violation("charge", f"a lost reservation was charged: {row}")
    if row.output_tokens > row.reserved_output or row.prompt_tokens not in (0, row.reserved_prompt):
        yield Violation("charge", f"charged otherwise than reserved: {row}")


def _overcharged(rows: Sequence[LedgerRow], tokens_made: int) -> Iterator[Violation]:
    told = [row for row in rows if row.outcome != LOST_OUTCOME]
    tickets = [row.ticket_id for row in told]
    if len(set(tickets)) != len(tickets):
        yield Violation("charge", f"a ticket was charged more than once: {told}")
    prompts = [row.answer_id or row.ticket_id for row in told if row.prompt_tokens]
    if len(set(prompts)) != len(prompts):
        yield Violation("charge", f"the prompt of one answer was charged more than once: {told}")
    charged = sum(row.output_tokens for row in told)
    if charged > tokens_made:
        yield Violation("charge", f"{charged} output tokens charged, engines made {tokens_made}")


def _undercharged(transcript: ClientTranscript, rows: Sequence[LedgerRow]) -> Iterator[Violation]:
    told = [row for row in rows if row.outcome != LOST_OUTCOME]
    came, charged = len(transcript.token_ids), sum(row.output_tokens for row in told)
    if transcript.finish_reason and charged < came:
        yield Violation("charge", f"{came} tokens came, charged were {told}")
    if transcript.attempts > 1 or len(rows) != len(told):
        return  # an edge was lost, and with it who knew what else its engines made
    if transcript.finish_reason and (len(told) != 1 or charged != came or told[0].outcome not in FINISHED_OUTCOMES):
        yield Violation("charge", f"{came} tokens came, charged were {told}")
    if came and not transcript.finish_reason and charged < came:
        yield Violation("charge", f"{came} tokens came of a broken answer, charged were {told}")


def check_totals(rows: Sequence[LedgerRow], totals: tuple[int | None, int | None, int | None]) -> Iterator[Violation]:
    """`totals`: prompt tokens, output tokens and requests that accounts came to."""
    summed = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows), len(rows)
    if tuple(each or 0 for each in totals) != summed:
        yield Violation("charge", f"accounts came to {totals}, the ledger adds up to {summed}")


def check_wasted_work(
    transcripts: Iterable[ClientTranscript], last_token_at: Mapping[int, float], max_delay_s: float
) -> Iterator[Violation]:
    """`made_at`: when engines made the last token of a prompt of some length; `bound`: s, for a cancel to get there."""
    for seen in transcripts:
        length = len(seen.request.prompt)
        if seen.has_cancelled and last_token_at.get(length, 0.0) > seen.ended_at + max_delay_s:
            late = last_token_at[length] - seen.ended_at
            yield Violation("waste", f"{length} prompt tokens: worked on for {late:.3f} s after the client left")


def check_poison(
    transcripts: Sequence[ClientTranscript],
    crashed_workers: Mapping[int, Sequence[str]],
    worker_stops: int = 0,
    allowed: AllowedFailures = NONE_ALLOWED,
) -> Iterator[Violation]:
    """Hold a request that crashes engines to one worker and to an error that says so.

    crashes: whose engines crashed each time, by the length of the prompt that did it.
    stops:   how often a worker was killed, frozen or asked to end: each took along what it had found out.
    excused: as for answers; such a request may have failed for another reason before it crashed anything.
    """
    for seen in transcripts:
        if _is_poison(seen) and seen.has_ended and seen.finish_reason:
            yield Violation("poison", f"{len(seen.request.prompt)} prompt tokens crash every engine, and were answered")
        if _is_poison(seen) and seen.failure_reason != CRASHED_REASON and not _is_allowed(seen, allowed):
            yield Violation("poison", f"its client was told {seen.failure_text or 'nothing'}")
    for length, workers in crashed_workers.items():
        if len(workers) > MAX_CRASHES_PER_REQUEST * (1 + worker_stops) or len(set(workers)) > 1 + worker_stops:
            yield Violation("poison", f"{length} prompt tokens crashed engines of {workers}")


def _is_poison(transcript: ClientTranscript) -> bool:
    return transcript.request.crash_token_index is not None


def check_residue(figures: Mapping[str, tuple[str, Mapping[str, float]]]) -> Iterator[Violation]:
    """`figures`: tier and figures by process. What is missing there fails as well."""
    for name, (tier, found) in figures.items():
        for figure in FIGURES_ZERO_AT_REST.get(tier, ()):
            if found.get(figure, -1.0):
                yield Violation("leak", f"{name} has {figure} {found.get(figure)}")
