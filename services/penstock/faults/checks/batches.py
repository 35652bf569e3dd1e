"""Checks of batches: the rows of their lines, their counts, their charges, their cancels and their remains. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.faults.checks import oracle
from penstock.faults.checks.checker import LOST_OUTCOME, LedgerRow, Violation
from penstock.faults.planned_batch import CHAT, COMPLETIONS, PlannedBatch
from penstock.faults.world.clients.batch_clients import ENDS, BatchTranscript, FoundBatch
from penstock.faults.world.clients.http_client import Json
from penstock.faults.world.host_clock import EPOCH_UNIX_S

MAX_START_DELAY_S = 1.0  # s after the answer of a cancel; no line starts later
DUPLICATE, EXPIRED = "duplicate_custom_id", "batch_expired"  # codes of errors
ROW_ID = "batch_req_"  # begin of the id of a row
OK = 200
CLOCK_ERROR_S = 2.0  # s by which times of batches may be wrong: whole seconds, of a host whose clock drifts
_RANKS = {"validating": 0, "in_progress": 1, "finalizing": 2, "cancelling": 2, **dict.fromkeys(ENDS, 3)}


@dataclass(slots=True)
class LineRows:
    """The rows of one batch, by the number of their line, and what is wrong with them."""

    planned: PlannedBatch
    batch: FoundBatch
    answers: dict[int, Json] = field(default_factory=dict)
    errors: dict[int, Json] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = {f"{ROW_ID}{each}": place for place, each in enumerate(self.line_ids)}
        for name, contents, rows in (
            ("output", self.batch.outputs, self.answers),
            ("errors", self.batch.errors, self.errors),
        ):
            if any(each != contents[0] for each in contents):
                self.problems.append(f"edges have different {name}: {contents}")
            self._read(name, contents[0] if contents else b"", numbers, rows)
        if both := self.answers.keys() & self.errors.keys():
            self.problems.append(f"lines {sorted(both)} have an answer and an error")

    @property
    def line_ids(self) -> list[str]:
        return self.planned.line_ids(self.batch.batch_id)

    def _read(self, name: str, content: bytes, numbers: Mapping[str, int], rows: dict[int, Json]) -> None:
        found: list[int] = []
        for each in content.splitlines():
            row = orjson.loads(each)
            if (number := numbers.get(row["id"])) is None:
                self.problems.append(f"{name} has a row of no line: {row}")
                continue
            found.append(number)
            rows[number] = row
        if found != sorted(set(found)):
            self.problems.append(f"{name} has the rows of lines {found}")


def check_batches(
    transcripts: Sequence[BatchTranscript], found: Sequence[FoundBatch], *, has_faults: bool
) -> Iterator[Violation]:
    """Compare what clients and edges have of each batch with its plan.

    has_faults: whether a fault was injected into the world, so that calls may have had to be repeated.
    """
    by_name = {each.planned.name: each for each in transcripts}
    by_id = {each.batch_id: each for each in found}
    for name, count in Counter(each.name for each in found).items():
        if count > 1:
            yield Violation("batch", f"{name} was created {count} times")
    for transcript in transcripts:
        for text in _client_problems(transcript, by_id.get(transcript.batch_id), has_faults=has_faults):
            yield Violation("batch", f"{transcript.planned.name}: {text}")
    for each in found:
        if each.name not in by_name:
            yield Violation("batch", f"{each.batch_id} was created by nobody")
            continue
        for text in _problems(LineRows(by_name[each.name].planned, each)):
            yield Violation("batch", f"{each.name} {each.batch_id}: {text}")


def _client_problems(transcript: BatchTranscript, found: FoundBatch | None, *, has_faults: bool) -> Iterator[str]:
    yield from transcript.problems
    if not transcript.has_ended:
        yield f"never ended; its client saw {transcript.views[-1:]}"
    elif found is None and not transcript.problems:
        yield f"{transcript.batch_id} was acknowledged, and no edge has it"
    elif found and transcript.views and transcript.views[-1] != found.batch:
        yield f"its client saw the end {transcript.views[-1]}, edges have {found.batch}"
    elif found:
        yield from _wrong_times(transcript, found.batch)
    if transcript.losses and not has_faults:
        yield f"{transcript.losses} calls were lost without a fault"
    for before, after in zip(transcript.views, transcript.views[1:], strict=False):
        if (
            _progress(before) > _progress(after)
            or before["request_counts"]["failed"] > after["request_counts"]["failed"]
        ):
            yield f"went back from {before} to {after}"


def _wrong_times(transcript: BatchTranscript, batch: Json) -> Iterator[str]:
    """Yield times that differ from those of the world, because they follow the clock of a replica."""
    created_at = batch["created_at"] - EPOCH_UNIX_S
    if not transcript.asked_at - CLOCK_ERROR_S <= created_at <= transcript.created_at + CLOCK_ERROR_S:
        yield f"was created {transcript.asked_at:.3f} to {transcript.created_at:.3f} s; it says {created_at} s"
    if batch["expired_at"] and batch["expired_at"] < batch["created_at"] + (transcript.planned.window_s or 0):
        yield f"expired before its window of {transcript.planned.window_s} s had ended: {batch}"


def _progress(view: Json) -> tuple[int, int]:
    return _RANKS[view["status"]], view["request_counts"]["completed"]


def _problems(rows: LineRows) -> Iterator[str]:
    """Yield what is wrong with the end, the rows and the counts of a batch."""
    batch, planned = rows.batch.batch, rows.planned
    yield from rows.problems
    status = batch["status"]
    if status not in ENDS:
        yield f"is {status} at rest"
        return
    if status == "failed" or (status == "expired" and planned.window_s is None):
        yield f"ended as {status}: {batch['errors']}"
    is_cancelled = status == "cancelled"
    if is_cancelled and planned.cancels_after_s is None:
        yield "was cancelled by nobody"
    for number in range(len(planned.lines)):
        if number in rows.answers:
            yield from (f"line {number}: {text}" for text in _wrong_answer(rows, number))
        elif number in rows.errors:
            yield from (f"line {number}: {text}" for text in _wrong_error(rows, number))
        elif not is_cancelled:
            yield f"line {number} has no row"
    yield from _wrong_counts(rows)


def _wrong_answer(rows: LineRows, number: int) -> Iterator[str]:
    row, line = rows.answers[number], rows.planned.lines[number]
    if row["custom_id"] != line.custom_id or row["error"] is not None or row["response"]["status_code"] != OK:
        yield f"has the row {row}"
        return
    if code := expected_code(rows.planned, number):
        yield f"was answered in spite of {code}"
        return
    text, usage = answer_of(rows.planned.endpoint, row["response"]["body"])
    expected = [line.expected(rows.line_ids[number], version) for version in oracle.VERSIONS]
    if (text, usage) not in [(each.text, (line.prompt_tokens, len(each.token_ids))) for each in expected]:
        yield f"was answered {text!r} with {usage} tokens, expected {expected[0].text!r}"


def _wrong_error(rows: LineRows, number: int) -> Iterator[str]:
    row, line = rows.errors[number], rows.planned.lines[number]
    if row["custom_id"] != (line.custom_id if line.has_custom_id else None):
        yield f"has the custom_id of another line: {row}"
    code, expected = error_code(row), expected_code(rows.planned, number)
    has_expired = code == EXPIRED and rows.batch.batch["status"] == "expired"
    if code != expected and not has_expired:
        yield f"ended with {row}, expected {expected or 'an answer'}"


def expected_code(planned: PlannedBatch, number: int) -> str:
    """Return the code of a line's error; empty if it is answered."""
    line = planned.lines[number]
    earlier = {each.custom_id for each in planned.lines[:number] if each.has_custom_id}
    if line.has_custom_id and line.custom_id in earlier:
        return DUPLICATE
    return line.defect.value


def error_code(row: Json) -> str:
    """Return the code of a row of the error file, whether an edge has refused the call or the line was none."""
    if row["error"]:
        return str(row["error"]["code"])
    return str(row["response"]["body"]["error"]["code"])


def answer_of(endpoint: str, body: Json) -> tuple[str, tuple[int, int]]:
    """Return the text of an answer, and the tokens of its prompt and output."""
    usage: dict[str, Any] = body["usage"]
    if endpoint in (CHAT, COMPLETIONS):
        choice = body["choices"][0]
        text = choice["message"]["content"] if endpoint == CHAT else choice["text"]
        return text, (usage["prompt_tokens"], usage["completion_tokens"])
    text = "".join(part["text"] for item in body["output"] for part in item["content"])
    return text, (usage["input_tokens"], usage["output_tokens"])


def _wrong_counts(rows: LineRows) -> Iterator[str]:
    batch, planned = rows.batch.batch, rows.planned
    counts, total = batch["request_counts"], len(planned.lines)
    found = {"total": total, "completed": len(rows.answers), "failed": len(rows.errors)}
    was_cancelled_early = batch["status"] == "cancelled" and batch["in_progress_at"] is None
    if counts != found and not (was_cancelled_early and counts == {**found, "total": 0}):
        yield f"counts {counts}, its files have {found}"
    usages = [answer_of(planned.endpoint, row["response"]["body"])[1] for row in rows.answers.values()]
    tokens = batch["usage"]["input_tokens"], batch["usage"]["output_tokens"]
    if tokens != (sum(prompt for prompt, _ in usages), sum(output for _, output in usages)):
        yield f"counts {tokens} tokens, its answers have {usages}"


def check_starts(transcripts: Iterable[BatchTranscript], starts: Mapping[str, Sequence[float]]) -> Iterator[Violation]:
    """Check that no line of a batch starts after its cancel. `starts`: s, by the line's id."""
    for transcript in transcripts:
        if transcript.cancelled_at is None:
            continue
        latest = transcript.cancelled_at + MAX_START_DELAY_S
        for number, each in enumerate(transcript.planned.line_ids(transcript.batch_id)):
            if late := [at for at in starts.get(each, ()) if at > latest]:
                text = f"line {number} started {late[0] - transcript.cancelled_at:.3f} s after the cancel was answered"
                yield Violation("late", f"{transcript.planned.name}: {text}")


def check_line_charges(
    rows_of: Iterable[LineRows], rows: Sequence[LedgerRow], *, may_lack_rows: bool
) -> Iterator[Violation]:
    """Compare the ledger with the rows of lines: an answer is charged once, and a line without one is not charged.

    rows:          of the ledger, of requests of lines alone.
    may_lack_rows: whether a process or the store may have been lost between the charge of a line and the commit of its
                   row. The line then runs again, unless its batch was cancelled or has expired meanwhile.
    """
    known: Counter[str] = Counter()
    for batch in rows_of:
        has_stopped = batch.batch.batch["status"] in ("cancelled", "expired")
        for number, answer_id in enumerate(batch.line_ids):
            known[answer_id] += 1
            settled = [row for row in rows if row.answer_id == answer_id and row.outcome != LOST_OUTCOME]
            charged = sum(row.prompt_tokens for row in settled), sum(row.output_tokens for row in settled)
            expected = (0, 0)
            if number in batch.answers:
                expected = answer_of(batch.planned.endpoint, batch.answers[number]["response"]["body"])[1]
            elif has_stopped and may_lack_rows:
                continue
            if charged != expected:
                text = f"{charged} tokens were charged, its answer has {expected}; charged were {settled}"
                yield Violation("charge", f"{batch.batch.name} line {number}: {text}")
    for row in rows:
        if row.answer_id not in known:
            yield Violation("charge", f"a request of no line was charged: {row}")
