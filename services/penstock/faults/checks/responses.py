"""Checks of stored responses: their ends, their tokens at every edge, their charges and their remains. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.faults.checks.checker import LOST_OUTCOME, LedgerRow, Violation
from penstock.faults.plan import ResponseAction
from penstock.faults.world.clients.http_client import Json
from penstock.faults.world.clients.response_clients import DELETED, ENDS, NOT_FOUND, ResponseTranscript

IN_PROGRESS = 1
STATUS_BY_FINISH = {"stop": "completed", "length": "incomplete"}


class StoredRow(NamedTuple):
    """One row of the store."""

    response_id: str
    status: int
    lease_until: float  # s
    is_cancel_requested: int


def check_responses(
    transcripts: Iterable[ResponseTranscript], *, has_faults: bool = False, was_store_away: bool = False
) -> Iterator[Violation]:
    """Compare what clients and edges have of each response with the oracle.

    has_faults:     whether a fault was injected into its world, so that a response may fail.
    was_store_away: whether auth or its disk was faulty. Then readers may receive an end before it is stored, and a
                    cancel that is stored first wins.
    """
    for transcript in transcripts:
        for kind, text in _violations(transcript, has_faults=has_faults, was_store_away=was_store_away):
            yield Violation(kind, f"{transcript.response_id}: {text}")


def _violations(transcript: ResponseTranscript, *, has_faults: bool, was_store_away: bool) -> Iterator[tuple[str, str]]:
    if not transcript.has_ended:
        yield "endless", f"never ended; its client has {len(transcript.numbers)} events"
        return
    yield from (("response", each) for each in transcript.problems)
    if transcript.losses and not has_faults:
        yield "moved", f"its client lost {transcript.losses} connections, or its response moved, without a fault"
    if transcript.is_cancel_late and not has_faults:
        yield "late", "was in progress when its cancel was answered"
    if transcript.numbers != list(range(len(transcript.numbers))):
        yield "order", f"received events {transcript.numbers}"
    expected = transcript.planned.expected.text
    if not expected.startswith(transcript.text):
        yield "changed", f"received {transcript.text!r}, expected {expected!r}"
    if transcript.answer:
        yield from _differences(transcript, transcript.answer, has_faults=has_faults)
    yield from _differences_between_edges(transcript, was_store_away=was_store_away)


def _differences(transcript: ResponseTranscript, answer: Json, *, has_faults: bool) -> Iterator[tuple[str, str]]:
    """Yield the differences between the end of a response and the expected one."""
    planned, status = transcript.planned, answer["status"]
    expected, text = planned.expected, text_of(answer)
    if status in STATUS_BY_FINISH.values():
        if status != STATUS_BY_FINISH[expected.finish_reason]:
            yield "changed", f"ended as {status}, expected {STATUS_BY_FINISH[expected.finish_reason]}"
        if text != expected.text:
            yield "changed", f"text {text!r}, expected {expected.text!r}"
        usage = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        if usage != (len(planned.request.prompt), len(expected.token_ids)):
            yield "usage", f"reports {usage} tokens, expected {len(expected.token_ids)}"
    elif not expected.text.startswith(text):
        yield "changed", f"text {text!r} is no prefix of {expected.text!r}"
    if status == "cancelled" and not (
        (planned.action is ResponseAction.CANCEL and transcript.asks_for_end) or transcript.was_left
    ):
        yield "failed", "was cancelled by nobody"
    if status == "failed" and not has_faults:
        yield "failed", transcript.error
    is_whole = status in STATUS_BY_FINISH.values()
    if transcript.numbers and (text != transcript.text if is_whole else not transcript.text.startswith(text)):
        yield "changed", f"its events have {transcript.text!r}, its object {text!r}"


def _differences_between_edges(transcript: ResponseTranscript, *, was_store_away: bool) -> Iterator[tuple[str, str]]:
    audits = transcript.audits
    if any(each != audits[0] for each in audits):
        yield "split", f"edges differ: {audits}"
    is_deleted = transcript.planned.action is ResponseAction.DELETE and transcript.is_acknowledged
    for audit in audits[:1]:
        code = audit.get("code")
        if is_deleted and code != NOT_FOUND:
            yield "deleted", f"was deleted, and an edge has {audit}"
        elif not is_deleted and transcript.is_created and transcript.status != DELETED and code:
            yield "lost", f"was acknowledged, and an edge answers {audit}"
        is_cancelled_late = was_store_away and transcript.asks_for_end and audit.get("status") == "cancelled"
        if not code and transcript.status in ENDS and audit != transcript.answer and not is_cancelled_late:
            yield "split", f"its client received {transcript.answer}, edges have {audit}"


def text_of(answer: Json) -> str:
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


def check_response_charges(
    transcripts: Iterable[ResponseTranscript],
    rows: Sequence[LedgerRow],
    tokens_made: Mapping[int, int],
    *,
    was_edge_killed: bool = False,
    may_have_lost_deferred: bool = False,
) -> Iterator[Violation]:
    """Compare the ledger with the responses. Parameters as of `check_charges`.

    was_edge_killed: an edge may have died between the end of a response in the store and its settlement.
    """
    for transcript in transcripts:
        length = len(transcript.planned.request.prompt)
        reserved = [row for row in rows if row.reserved_prompt == length]
        charges = [row for row in reserved if row.outcome != LOST_OUTCOME]
        has_charge = any(row.prompt_tokens or row.output_tokens for row in charges)
        is_lost = was_edge_killed and not has_charge and len(charges) < len(reserved)
        for text in _wrong_charges(
            transcript, charges, tokens_made.get(length, 0), may_be_missing=is_lost or may_have_lost_deferred
        ):
            yield Violation("charge", f"{transcript.response_id}: {text}; charged were {charges}")


def _wrong_charges(
    transcript: ResponseTranscript, rows: Sequence[LedgerRow], tokens_made: int, *, may_be_missing: bool
) -> Iterator[str]:
    length = len(transcript.planned.request.prompt)
    output, prompt = sum(row.output_tokens for row in rows), sum(row.prompt_tokens for row in rows)
    if output > tokens_made:
        yield f"{output} output tokens were charged, engines made {tokens_made}"
    if prompt > length:
        yield f"{prompt} prompt tokens were charged of {length}"
    audit = transcript.audits[0] if transcript.audits else {}
    if not audit.get("usage"):
        return
    received = audit["usage"]["output_tokens"]
    if output > received:
        yield f"{output} output tokens were charged, the response has {received}"
    if (output < received or prompt < length) and not may_be_missing:
        yield f"{prompt} and {output} tokens were charged, the response has {length} and {received}"


def check_response_store(rows: Iterable[StoredRow], orphans: int, now: float) -> Iterator[Violation]:
    """Check the store at rest. `orphans`: parts of responses that do not exist. `now`: s."""
    for row in rows:
        if row.status == IN_PROGRESS and row.lease_until > now:
            yield Violation("lease", f"{row.response_id} is held at rest")
        elif row.status == IN_PROGRESS and not row.is_cancel_requested:  # else it counts as cancelled
            yield Violation("endless", f"{row.response_id} is in progress in the store at rest")
    if orphans:
        yield Violation("deleted", f"the store has {orphans} parts of responses that do not exist")
