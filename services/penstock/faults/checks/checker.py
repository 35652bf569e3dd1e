"""Checks of a finished world: answers, charges, wasted work, poison requests and leaks. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.client import RetryPolicy
from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import LIMIT_REASONS, NONE_ALLOWED, AllowedFailures
from penstock.faults.world.clients.clients import TOP_LOGPROBS, ClientTranscript, TokenCountResult
from penstock.local_mesh.plan import FIGURES_ZERO_AT_REST as MESH_FIGURES_ZERO_AT_REST

# Outcome of a reservation whose edge died. It is charged nothing, because the delivered tokens are unknown.
LOST_OUTCOME = "lost"
FINISHED_OUTCOMES = ("stop", "length")
CRASHED_REASON = "ENGINE_CRASHED"
REVOKED_REASON = "KEY_REVOKED"
CONNECTION_LOST = "CONNECTION_LOST"  # raised by the client itself, without a suggested retry delay
MAX_ATTEMPTS = RetryPolicy().max_attempts
REJECTION_REASONS = ("AUTH_LOST", "STORE_UNAVAILABLE", *LIMIT_REASONS)  # of auth; a client tries again after each
NO_TICKETS: Mapping[int, str] = MappingProxyType({})
# In a world, a shard gives up a run without reports after seconds.
FIGURES_ZERO_AT_REST = MESH_FIGURES_ZERO_AT_REST | {
    "edge": (
        *MESH_FIGURES_ZERO_AT_REST["edge"],
        *("responses_held", "responses_followed", "response_tasks", "lines", "guests", "spilled_requests"),
    ),
    "queue": (*MESH_FIGURES_ZERO_AT_REST["queue"], "running"),
}
MAX_CRASHES_PER_REQUEST = 2  # the second crash identifies the request among the suspects of the first


class Violation(NamedTuple):
    """A violated guarantee: `kind` names the guarantee in one word, `text` describes the violation."""

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
    answer_id: str  # the answer that the ticket continues; empty: it starts an answer, named after the ticket


def check_answers(
    transcripts: Iterable[ClientTranscript], allowed: AllowedFailures = NONE_ALLOWED
) -> Iterator[Violation]:
    """Compare each answer with the expected one; `allowed` are the errors that a request may end with, and when."""
    for number, transcript in enumerate(transcripts):
        for kind, text in _answer_violations(transcript, allowed):
            yield Violation(kind, f"request {number} ({len(transcript.request.prompt)} prompt tokens): {text}")


def check_token_counts(
    results: Iterable[TokenCountResult], allowed: AllowedFailures = NONE_ALLOWED
) -> Iterator[Violation]:
    """Compare each token count with the prompt; `allowed` as for answers."""
    for result in results:
        count = len(result.request.prompt)
        if not result.has_ended:
            yield Violation("endless", f"the count of {count} tokens never ended")
        elif result.failure_text and not _is_allowed(result, allowed):
            yield Violation("failed", f"the count of {count} tokens: {result.failure_text}")
        elif not result.failure_text and tuple(result.token_ids) not in result.request.possible_ids:
            yield Violation("changed", f"{count} tokens were counted as {result.token_ids}")


def _is_allowed(result: ClientTranscript | TokenCountResult, allowed: AllowedFailures) -> bool:
    """Whether the error is allowed at its time and suggests a retry delay; clients depend on that delay."""
    if isinstance(result, ClientTranscript) and _has_used_up_attempts(result, allowed):
        return True
    has_advice = result.retry_after is not None or result.failure_reason in (CONNECTION_LOST, REVOKED_REASON)
    return has_advice and any(result.ended_at in interval for interval in allowed.get(result.failure_reason, ()))


def _has_used_up_attempts(transcript: ClientTranscript, allowed: AllowedFailures) -> bool:
    """Whether a lost connection ended the last attempt after earlier ones may have had rejections that are allowed."""
    if transcript.failure_reason != CONNECTION_LOST or transcript.attempts < MAX_ATTEMPTS:
        return False
    rejections = (each for reason in REJECTION_REASONS for each in allowed.get(reason, ()))
    return any(each.since < transcript.ended_at for each in rejections)


def _answer_violations(transcript: ClientTranscript, allowed: AllowedFailures) -> Iterator[Violation]:
    request = transcript.request
    if not transcript.has_ended:
        yield Violation("endless", f"never ended; {len(transcript.token_ids)} tokens received")
        return
    if transcript.indexes != list(range(len(transcript.indexes))):
        yield Violation("order", f"received indexes {transcript.indexes}")
    if request.logprobs and transcript.logprobs != len(transcript.token_ids):
        yield Violation("logprobs", f"received {transcript.logprobs} logprobs with {len(transcript.token_ids)} tokens")
    if request.logprobs and transcript.top_token_ids[::TOP_LOGPROBS] != transcript.token_ids:
        yield Violation("logprobs", f"the likeliest of {transcript.token_ids} were {transcript.top_token_ids}")
    if request.seed is not None and transcript.seed not in (0, request.seed):
        yield Violation("changed", f"ran with seed {transcript.seed} instead of {request.seed}")
    expected = oracle.expected_answer(
        request.prompt_for(transcript.version),
        transcript.seed,
        request.max_output_tokens,
        ignore_eos=request.ignore_eos,
        stops=request.stops,
        version=transcript.version,
    )
    if transcript.finish_reason:
        yield from _differences(transcript, expected)
    else:
        yield from _partial_differences(transcript, expected, allowed)


def _differences(transcript: ClientTranscript, expected: oracle.ExpectedAnswer) -> Iterator[Violation]:
    """Yield the differences between a finished answer and the expected one."""
    if transcript.token_ids != expected.token_ids:
        yield Violation("changed", f"ids {transcript.token_ids}, expected {expected.token_ids}")
    if transcript.text != expected.text:
        yield Violation("changed", f"text {transcript.text!r}, expected {expected.text!r}")
    if transcript.finish_reason != expected.finish_reason:
        yield Violation("changed", f"ended by {transcript.finish_reason}, expected {expected.finish_reason}")
    assert transcript.usage
    prompt, output = transcript.usage
    if prompt != len(transcript.request.prompt) or transcript.prompt_tokens != prompt:
        yield Violation(
            "usage", f"{prompt} prompt tokens reported at the end, {transcript.prompt_tokens} with `accepted`"
        )
    if output != len(transcript.token_ids) if transcript.attempts == 1 else output > len(transcript.token_ids):
        yield Violation("usage", f"{output} output tokens settled, {len(transcript.token_ids)} received")


def _partial_differences(
    transcript: ClientTranscript, expected: oracle.ExpectedAnswer, allowed: AllowedFailures
) -> Iterator[Violation]:
    if transcript.token_ids != expected.token_ids[: len(transcript.token_ids)]:
        yield Violation("changed", f"ids {transcript.token_ids} are not a prefix of {expected.token_ids}")
    if not expected.text.startswith(transcript.text):
        yield Violation("changed", f"text {transcript.text!r} is not a prefix of {expected.text!r}")
    is_late = transcript.request.timeout_s is not None and transcript.failure_text.startswith("DEADLINE_EXCEEDED")
    is_crasher = _is_poison(transcript) and transcript.failure_reason == CRASHED_REASON
    if not (
        transcript.has_cancelled
        or is_late
        or _is_too_slow(transcript)
        or is_crasher
        or _is_allowed(transcript, allowed)
    ):
        yield Violation(
            "failed", f"{transcript.failure_text or 'ended without a status'}, after {transcript.attempts} attempts"
        )


def check_charges(
    transcripts: Sequence[ClientTranscript],
    rows: Sequence[LedgerRow],
    tokens_made: Mapping[int, int],
    *,
    last_tickets: Mapping[int, str] = NO_TICKETS,
    may_have_lost_deferred: bool = False,
) -> Iterator[Violation]:
    """Compare the ledger with the transcripts of clients.

    tokens_made:            tokens that engines generated, by prompt length.
    last_tickets:           the last new ticket of each request, by prompt length, if an edge died that may have
                            reported an end to its client and not to auth.
    may_have_lost_deferred: an edge may have died with charges that it had deferred while auth could not record them.
    """
    by_length: dict[int, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        by_length[row.reserved_prompt].append(row)
        yield from _check_reserved(row)
    for transcript in transcripts:
        length = len(transcript.request.prompt)
        charges = by_length.pop(length, [])
        is_lost = any(row.outcome == LOST_OUTCOME and row.ticket_id == last_tickets.get(length) for row in charges)
        missing = () if may_have_lost_deferred or is_lost else _undercharged(transcript, charges)
        for kind, text in (*_overcharged(charges, tokens_made.get(length, 0)), *missing):
            yield Violation(kind, f"request of {length} prompt tokens: {text}")
    for length, charges in by_length.items():
        yield Violation("charge", f"{len(charges)} charges for {length} prompt tokens, which no client sent")


def _check_reserved(row: LedgerRow) -> Iterator[Violation]:
    if row.outcome == LOST_OUTCOME and (row.prompt_tokens or row.output_tokens):
        yield Violation("charge", f"a lost reservation was charged: {row}")
    if row.output_tokens > row.reserved_output or row.prompt_tokens not in (0, row.reserved_prompt):
        yield Violation("charge", f"the charge exceeds its reservation: {row}")


def _overcharged(rows: Sequence[LedgerRow], tokens_made: int) -> Iterator[Violation]:
    settled = [row for row in rows if row.outcome != LOST_OUTCOME]
    tickets = [row.ticket_id for row in settled]
    if len(set(tickets)) != len(tickets):
        yield Violation("charge", f"a ticket was charged more than once: {settled}")
    if sum(row.prompt_tokens > 0 for row in settled) > 1:
        yield Violation("charge", f"the prompt of one request was charged more than once: {settled}")
    charged = sum(row.output_tokens for row in settled)
    if charged > tokens_made:
        yield Violation("charge", f"{charged} output tokens charged, engines made {tokens_made}")


def _undercharged(transcript: ClientTranscript, rows: Sequence[LedgerRow]) -> Iterator[Violation]:
    settled = [row for row in rows if row.outcome != LOST_OUTCOME]
    received, charged = len(transcript.token_ids), sum(row.output_tokens for row in settled)
    if transcript.finish_reason and charged < received:
        yield Violation("charge", f"{received} tokens were received, charged were {settled}")
    if transcript.attempts > 1 or len(rows) != len(settled):
        return  # an edge was lost, and with it the count of tokens that had not reached the client
    if transcript.finish_reason and (
        len(settled) != 1 or charged != received or settled[0].outcome not in FINISHED_OUTCOMES
    ):
        yield Violation("charge", f"{received} tokens were received, charged were {settled}")
    if received and not transcript.finish_reason and charged < received:
        yield Violation("charge", f"{received} tokens of a failed answer were received, charged were {settled}")


def check_totals(rows: Sequence[LedgerRow], totals: tuple[int | None, int | None, int | None]) -> Iterator[Violation]:
    """Compare the sums of the ledger with `totals`: prompt tokens, output tokens and requests of the balances."""
    summed = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows), len(rows)
    if tuple(each or 0 for each in totals) != summed:
        yield Violation("charge", f"the balances are {totals}, the sums of the ledger are {summed}")


def check_wasted_work(
    transcripts: Iterable[ClientTranscript], last_token_at: Mapping[int, float], max_delay_s: float
) -> Iterator[Violation]:
    """Check that engines stopped soon after each cancel.

    last_token_at: when engines generated the last token, by prompt length.
    max_delay_s:   s that a cancel may take to reach the engine.
    """
    for transcript in transcripts:
        length = len(transcript.request.prompt)
        if transcript.has_cancelled and last_token_at.get(length, 0.0) > transcript.ended_at + max_delay_s:
            late = last_token_at[length] - transcript.ended_at
            yield Violation("waste", f"{length} prompt tokens: computed for {late:.3f} s after the client cancelled")


def check_poison(
    transcripts: Sequence[ClientTranscript],
    crashed_workers: Mapping[int, Sequence[str]],
    worker_stops: int = 0,
    allowed: AllowedFailures = NONE_ALLOWED,
) -> Iterator[Violation]:
    """Check that a request that crashes engines is confined to one worker and ends with ENGINE_CRASHED.

    crashed_workers: the worker of each crashed engine, by the length of the prompt that crashed it.
    worker_stops:    how often a worker was killed, frozen or stopped: each stop loses its quarantine.
    allowed:         as for answers; such a request may fail for another reason before it crashes an engine, and its
                     client may stop reading.
    """
    for transcript in filter(_is_poison, transcripts):
        if transcript.has_ended and transcript.finish_reason:
            length = len(transcript.request.prompt)
            yield Violation("poison", f"{length} prompt tokens crash every engine, and were answered")
        is_excused = _is_too_slow(transcript) or _is_allowed(transcript, allowed)
        if transcript.failure_reason != CRASHED_REASON and not is_excused:
            yield Violation("poison", f"its client received {transcript.failure_text or 'no error'}")
    for length, workers in crashed_workers.items():
        if len(workers) > MAX_CRASHES_PER_REQUEST * (1 + worker_stops) or len(set(workers)) > 1 + worker_stops:
            yield Violation("poison", f"{length} prompt tokens crashed engines of {workers}")


def _is_too_slow(transcript: ClientTranscript) -> bool:
    return transcript.request.stall_after_tokens is not None and transcript.failure_reason == "CLIENT_TOO_SLOW"


def _is_poison(transcript: ClientTranscript) -> bool:
    return transcript.request.crash_token_index is not None


def check_residue(figures: Mapping[str, tuple[str, Mapping[str, float]]]) -> Iterator[Violation]:
    """Check the figures that are 0 at rest. `figures` has tier and figures by process; none may be missing."""
    for name, (tier, values) in figures.items():
        for figure in FIGURES_ZERO_AT_REST.get(tier, ()):
            if values.get(figure, -1.0):
                yield Violation("leak", f"{name} has {figure} {values.get(figure)}")
