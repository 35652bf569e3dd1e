"""Whether what clients saw, what was charged and what is left over is what was promised. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import NOBODY, Excused
from penstock.faults.world.clients import Counted, Seen

LOST = "lost"  # outcome of a reservation whose edge died; charged nothing, for nobody can say what its client got
FINAL = ("stop", "length")
CRASHED = "ENGINE_CRASHED"
CONNECTION_LOST = "CONNECTION_LOST"  # what a client says by itself
NOTHING: Mapping[int, str] = MappingProxyType({})
CRASHES = 2  # of a request that does it: the second tells it from those beside it

# Figures that are back at zero when nothing runs, by tier.
RESIDUE = {
    "edge": ("active_requests", "reservations_open", "held_bytes"),
    "auth": ("reservations", "reserved_tokens", "concurrent_requests", "store_pending"),
    "queue": ("waiting", "waiting_tokens", "offered", "running"),
    "scheduler": ("leases", "promised_blocks"),
    "worker": ("running", "waiting", "kv_blocks_used", "leases_expected", "leases_running", "parked"),
}


class Violation(NamedTuple):
    """A broken promise: `kind` is one of few words, `text` says of what."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Row(NamedTuple):
    """One row of auth's ledger."""

    reservation_id: str
    ticket_id: str
    reserved_prompt: int
    reserved_output: int
    prompt_tokens: int
    output_tokens: int
    outcome: str
    answer_id: str  # that it continues; empty: it begins one, named after the ticket


def judge_answers(all_seen: Iterable[Seen], excused: Excused = NOBODY) -> Iterator[Violation]:
    """`excused`: reasons for which a request may fail in this world, and when."""
    for number, seen in enumerate(all_seen):
        for kind, text in _faults_of(seen, excused):
            yield Violation(kind, f"request {number} ({len(seen.ask.prompt)} prompt tokens): {text}")


def judge_counts(all_counted: Iterable[Counted], excused: Excused = NOBODY) -> Iterator[Violation]:
    """`excused` as for answers."""
    for each in all_counted:
        if not each.is_over:
            yield Violation("endless", f"the size of {len(each.ask.prompt)} tokens was never told")
        elif each.failure and not _is_excused(each, excused):
            yield Violation("failed", f"the size of {len(each.ask.prompt)} tokens: {each.failure}")
        elif not each.failure and tuple(each.token_ids) != each.ask.prompt:
            yield Violation("changed", f"{len(each.ask.prompt)} tokens were counted as {each.token_ids}")


def _is_excused(each: Seen | Counted, excused: Excused) -> bool:
    """Whether its client was told in time what nobody could help, and when to come back; else a retry is in vain."""
    has_advice = each.retry_after is not None or each.reason_of_failure == CONNECTION_LOST
    return has_advice and any(each.over_at in span for span in excused.get(each.reason_of_failure, ()))


def _faults_of(seen: Seen, excused: Excused) -> Iterator[Violation]:
    ask = seen.ask
    if not seen.is_over:
        yield Violation("endless", f"never ended; {len(seen.token_ids)} tokens came")
        return
    if seen.indexes != list(range(len(seen.indexes))):
        yield Violation("order", f"indexes came as {seen.indexes}")
    if ask.logprobs and seen.logprobs != len(seen.token_ids):
        yield Violation("logprobs", f"{seen.logprobs} came with {len(seen.token_ids)} tokens")
    if ask.seed is not None and seen.seed not in (0, ask.seed):
        yield Violation("changed", f"ran with seed {seen.seed}, asked was {ask.seed}")
    owed = oracle.owed(ask.prompt, seen.seed, ask.tokens, ignore_eos=ask.ignore_eos, stops=ask.stops)
    if seen.reason:
        yield from _unlike(seen, owed)
    else:
        yield from _unlike_in_part(seen, owed, excused)


def _unlike(seen: Seen, owed: oracle.Owed) -> Iterator[Violation]:
    """What differs in an answer that is whole."""
    if seen.token_ids != owed.token_ids:
        yield Violation("changed", f"ids {seen.token_ids}, owed {owed.token_ids}")
    if seen.text != owed.text:
        yield Violation("changed", f"text {seen.text!r}, owed {owed.text!r}")
    if seen.reason != owed.reason:
        yield Violation("changed", f"ended by {seen.reason}, owed {owed.reason}")
    assert seen.usage
    prompt, output = seen.usage
    if prompt != len(seen.ask.prompt) or seen.prompt_tokens != prompt:
        yield Violation("usage", f"{prompt} prompt tokens told, {seen.prompt_tokens} accepted")
    if output != len(seen.token_ids) if seen.attempts == 1 else output > len(seen.token_ids):
        yield Violation("usage", f"{output} output tokens told, {len(seen.token_ids)} came")


def _unlike_in_part(seen: Seen, owed: oracle.Owed, excused: Excused) -> Iterator[Violation]:
    if seen.token_ids != owed.token_ids[: len(seen.token_ids)]:
        yield Violation("changed", f"ids {seen.token_ids} do not begin {owed.token_ids}")
    if not owed.text.startswith(seen.text):
        yield Violation("changed", f"text {seen.text!r} does not begin {owed.text!r}")
    is_late = seen.ask.timeout is not None and seen.failure.startswith("DEADLINE_EXCEEDED")
    is_slow = seen.ask.stalls_at is not None and seen.reason_of_failure == "CLIENT_TOO_SLOW"
    is_crasher = _is_poison(seen) and seen.reason_of_failure == CRASHED
    if not (seen.has_left or is_late or is_slow or is_crasher or _is_excused(seen, excused)):
        yield Violation("failed", f"{seen.failure or 'ended without an ending'}, after {seen.attempts} attempts")


def judge_charges(
    all_seen: Sequence[Seen],
    rows: Sequence[Row],
    made: Mapping[int, int],
    *,
    last: Mapping[int, str] = NOTHING,
    has_lost_some: bool = False,
) -> Iterator[Violation]:
    """Hold the ledger against what clients saw.

    made:          tokens that engines made, by prompt length.
    last:          tickets by which requests were last asked for, by prompt length, where an edge died that may have
                   told a client of the end and not auth.
    has_lost_some: an edge may have died with what it had let in while auth was away.
    """
    by_length: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_length[row.reserved_prompt].append(row)
        yield from _beyond(row)
    for seen in all_seen:
        length = len(seen.ask.prompt)
        charged = by_length.pop(length, [])
        is_forgiven = any(row.outcome == LOST and row.ticket_id == last.get(length) for row in charged)
        missing = () if has_lost_some or is_forgiven else _undercharged(seen, charged)
        for kind, text in (*_overcharged(charged, made.get(length, 0)), *missing):
            yield Violation(kind, f"request of {length} prompt tokens: {text}")
    for length, strays in by_length.items():
        yield Violation("charge", f"{len(strays)} charges for {length} prompt tokens, which nobody asked for")


def _beyond(row: Row) -> Iterator[Violation]:
    if row.outcome == LOST and (row.prompt_tokens or row.output_tokens):
        yield Violation("charge", f"a lost reservation was charged: {row}")
    if row.output_tokens > row.reserved_output or row.prompt_tokens not in (0, row.reserved_prompt):
        yield Violation("charge", f"charged otherwise than reserved: {row}")


def _overcharged(rows: Sequence[Row], made: int) -> Iterator[Violation]:
    told = [row for row in rows if row.outcome != LOST]
    tickets = [row.ticket_id for row in told]
    if len(set(tickets)) != len(tickets):
        yield Violation("charge", f"a ticket was charged more than once: {told}")
    prompts = [row.answer_id or row.ticket_id for row in told if row.prompt_tokens]
    if len(set(prompts)) != len(prompts):
        yield Violation("charge", f"the prompt of one answer was charged more than once: {told}")
    charged = sum(row.output_tokens for row in told)
    if charged > made:
        yield Violation("charge", f"{charged} output tokens charged, engines made {made}")


def _undercharged(seen: Seen, rows: Sequence[Row]) -> Iterator[Violation]:
    told = [row for row in rows if row.outcome != LOST]
    came, charged = len(seen.token_ids), sum(row.output_tokens for row in told)
    if seen.reason and charged < came:
        yield Violation("charge", f"{came} tokens came, charged were {told}")
    if seen.attempts > 1 or len(rows) != len(told):
        return  # an edge was lost, and with it who knew what else its engines made
    if seen.reason and (len(told) != 1 or charged != came or told[0].outcome not in FINAL):
        yield Violation("charge", f"{came} tokens came, charged were {told}")
    if came and not seen.reason and charged < came:
        yield Violation("charge", f"{came} tokens came of a broken answer, charged were {told}")


def judge_totals(rows: Sequence[Row], totals: tuple[int | None, int | None, int | None]) -> Iterator[Violation]:
    """`totals`: prompt tokens, output tokens and requests that accounts came to."""
    summed = sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows), len(rows)
    if tuple(each or 0 for each in totals) != summed:
        yield Violation("charge", f"accounts came to {totals}, the ledger adds up to {summed}")


def judge_waste(all_seen: Iterable[Seen], made_at: Mapping[int, float], bound: float) -> Iterator[Violation]:
    """`made_at`: when engines made the last token of a prompt of some length; `bound`: s, for a cancel to get there."""
    for seen in all_seen:
        length = len(seen.ask.prompt)
        if seen.has_left and made_at.get(length, 0.0) > seen.over_at + bound:
            late = made_at[length] - seen.over_at
            yield Violation("waste", f"{length} prompt tokens: worked on for {late:.3f} s after the client left")


def judge_poison(
    all_seen: Sequence[Seen], crashes: Mapping[int, Sequence[str]], stops: int = 0, excused: Excused = NOBODY
) -> Iterator[Violation]:
    """Hold a request that crashes engines to one worker and to an error that says so.

    crashes: whose engines crashed each time, by the length of the prompt that did it.
    stops:   how often a worker was killed, frozen or asked to end: each took along what it had found out.
    excused: as for answers; such a request may have failed for another reason before it crashed anything.
    """
    for seen in all_seen:
        if _is_poison(seen) and seen.is_over and seen.reason:
            yield Violation("poison", f"{len(seen.ask.prompt)} prompt tokens crash every engine, and were answered")
        if _is_poison(seen) and seen.reason_of_failure != CRASHED and not _is_excused(seen, excused):
            yield Violation("poison", f"its client was told {seen.failure or 'nothing'}")
    for length, workers in crashes.items():
        if len(workers) > CRASHES * (1 + stops) or len(set(workers)) > 1 + stops:
            yield Violation("poison", f"{length} prompt tokens crashed engines of {workers}")


def _is_poison(seen: Seen) -> bool:
    return seen.ask.poison_at is not None


def judge_residue(figures: Mapping[str, tuple[str, Mapping[str, float]]]) -> Iterator[Violation]:
    """`figures`: tier and figures by process. What is missing there fails as well."""
    for name, (tier, found) in figures.items():
        for figure in RESIDUE.get(tier, ()):
            if found.get(figure, -1.0):
                yield Violation("leak", f"{name} has {figure} {found.get(figure)}")
