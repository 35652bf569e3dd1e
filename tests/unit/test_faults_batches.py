"""The checks of batches in fault worlds, and the worlds that they pass."""

import orjson
import pytest

from penstock.faults.checks.batches import (
    CLOCK_ERROR_S,
    MAX_START_DELAY_S,
    LineRows,
    check_batches,
    check_line_charges,
    check_starts,
)
from penstock.faults.checks.checker import LOST_OUTCOME, LedgerRow
from penstock.faults.mutations import plan_world
from penstock.faults.plan import PlanOverrides
from penstock.faults.planned_batch import COMPLETIONS, LineDefect, PlannedBatch, PlannedLine
from penstock.faults.run import run_seed
from penstock.faults.world.clients.batch_clients import BatchTranscript, FoundBatch
from penstock.faults.world.host_clock import EPOCH_UNIX_S

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

WORLDS = 5  # seeds with batches
BATCH_ID, TOKENS = "batch_1", 4
AT = 1.0  # s; when the batch was created
GOOD, BAD, REPEATED = 0, 1, 2  # numbers of the lines


def line(custom_id, defect=LineDefect.NONE):
    return PlannedLine(
        custom_id=custom_id, text="abc", max_output_tokens=TOKENS, seed=7, ignore_eos=True, defect=defect
    )


def planned(**fields):
    lines = line("a"), line("b", LineDefect.WRONG_METHOD), line("a")
    return PlannedBatch(name="batch0", starts_at=0.0, endpoint=COMPLETIONS, lines=lines, **fields)


LINE_IDS = planned().line_ids(BATCH_ID)
TEXT = line("a").expected(LINE_IDS[GOOD]).text


def answer_row(number=GOOD, custom_id="a", text=TEXT, tokens=TOKENS):
    usage = {"prompt_tokens": 3, "completion_tokens": tokens}
    response = {"status_code": 200, "body": {"choices": [{"text": text}], "usage": usage}}
    return {"id": f"batch_req_{LINE_IDS[number]}", "custom_id": custom_id, "response": response, "error": None}


def error_row(number, custom_id, code):
    error = {"code": code}
    return {"id": f"batch_req_{LINE_IDS[number]}", "custom_id": custom_id, "response": None, "error": error}


ERRORS = [error_row(BAD, "b", "invalid_method"), error_row(REPEATED, "a", "duplicate_custom_id")]


def found(answers=None, errors=None, **fields):
    answers = [answer_row()] if answers is None else answers
    errors = ERRORS if errors is None else errors
    output, refused = [b"\n".join(map(orjson.dumps, rows)) for rows in (answers, errors)]
    batch = {
        "id": BATCH_ID,
        "metadata": {"name": "batch0"},
        "status": "completed",
        "errors": None,
        "created_at": int(EPOCH_UNIX_S + AT),
        "in_progress_at": int(EPOCH_UNIX_S + AT),
        "expired_at": None,
        "request_counts": {"total": 3, "completed": len(answers), "failed": len(errors)},
        "usage": {"input_tokens": 3 * len(answers), "output_tokens": TOKENS * len(answers)},
        **fields,
    }
    return FoundBatch(tenant=0, batch=batch, outputs=[output, output], errors=[refused, refused])


def transcript(each, plan=None, **fields):
    given = {"batch_id": BATCH_ID, "has_ended": True, "asked_at": AT, "created_at": AT, "views": [each.batch]}
    return BatchTranscript(planned=plan or planned(), **given | fields)


def texts(each, plan=None, **fields):
    return [violation.text for violation in check_batches([transcript(each, plan, **fields)], [each], has_faults=False)]


def row(prompt=3, output=TOKENS, outcome="length", answer_id=LINE_IDS[GOOD]):
    return LedgerRow("r", "t", 3, TOKENS, prompt, output, outcome, answer_id)


def charge_texts(each, rows, *, may_lack_rows=False):
    lines = [LineRows(planned(cancels_after_s=0.0), each)]
    return [violation.text for violation in check_line_charges(lines, rows, may_lack_rows=may_lack_rows)]


def test_a_batch_with_one_row_of_each_line_passes():
    assert texts(found()) == []


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (found(answers=[]), "line 0 has no row"),
        (found(errors=ERRORS[:1]), "line 2 has no row"),
        (found(errors=ERRORS[::-1]), "errors has the rows of lines [2, 1]"),
        (found(answers=[answer_row(), answer_row()]), "output has the rows of lines [0, 0]"),
        (found(errors=[error_row(GOOD, "a", "batch_expired"), *ERRORS]), "lines [0] have an answer and an error"),
        (found(answers=[answer_row(custom_id="b")]), "line 0: has the row"),
        (found(answers=[answer_row(text="no letter of it")]), "line 0: was answered"),
        (found(answers=[answer_row(), answer_row(REPEATED)], errors=ERRORS[:1]), "line 2: was answered in spite of"),
        (found(errors=[error_row(BAD, "a", "invalid_method"), ERRORS[1]]), "line 1: has the custom_id of another"),
        (found(errors=[error_row(BAD, "b", "line_lost"), ERRORS[1]]), "line 1: ended with"),
        (found(request_counts={"total": 3, "completed": 2, "failed": 2}), "counts"),
        (found(usage={"input_tokens": 6, "output_tokens": 8}), "counts (6, 8) tokens"),
        (found(status="in_progress"), "is in_progress at rest"),
        (found(status="expired"), "ended as expired"),
        (found(status="cancelled"), "was cancelled by nobody"),
        (found(created_at=int(EPOCH_UNIX_S + AT + CLOCK_ERROR_S + 1)), "was created"),
    ],
)
def test_a_wrong_end_of_a_batch_is_found(each, text):
    assert any(text in found for found in texts(each))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"has_ended": False}, "never ended"),
        ({"batch_id": "batch_2"}, "was acknowledged, and no edge has it"),
        ({"losses": 1}, "calls were lost"),
        ({"views": [found(status="completed").batch, found(status="in_progress").batch]}, "went back"),
        ({"views": [found(status="cancelled").batch]}, "its client saw the end"),
        ({"problems": ["refused"]}, "refused"),
    ],
)
def test_what_a_client_must_not_see_is_found(fields, text):
    assert any(text in found for found in texts(found(), **fields))


def test_a_batch_that_was_created_twice_is_found():
    again = found(id="batch_2")
    violations = check_batches([transcript(found())], [found(), again], has_faults=True)
    assert "batch0 was created 2 times" in [each.text for each in violations]


def test_a_window_that_ends_early_is_found():
    early = found(status="expired", expired_at=int(EPOCH_UNIX_S + AT) + 1)
    assert any("before its window" in each for each in texts(early, planned(window_s=2)))
    late = found(status="expired", expired_at=int(EPOCH_UNIX_S + AT) + 2)
    assert texts(late, planned(window_s=2)) == []


def test_a_line_that_starts_after_a_cancel_is_found():
    cancelled = transcript(found(), cancelled_at=2.0)
    assert list(check_starts([cancelled], {LINE_IDS[GOOD]: [1.0, 2.0 + MAX_START_DELAY_S]})) == []
    late = list(check_starts([cancelled], {LINE_IDS[GOOD]: [2.1 + MAX_START_DELAY_S]}))
    assert [each.kind for each in late] == ["late"]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(), row()],
        [row(output=TOKENS - 1)],
        [row(), row(answer_id=LINE_IDS[BAD])],
        [row(), row(answer_id="of no line")],
    ],
)
def test_a_line_that_is_not_charged_once_is_found(rows):
    assert len(charge_texts(found(), rows)) == 1


def test_a_line_whose_runs_are_charged_together_passes():
    assert charge_texts(found(), [row(output=1), row(0, TOKENS - 1), row(0, 0, LOST_OUTCOME)]) == []


def test_a_cancelled_batch_may_lack_a_row_that_was_charged_only_after_a_fault():
    cancelled = found(answers=[], status="cancelled")
    assert len(charge_texts(cancelled, [row()])) == 1
    assert charge_texts(cancelled, [row()], may_lack_rows=True) == []
    assert len(charge_texts(found(answers=[]), [row()], may_lack_rows=True)) == 1


def test_worlds_with_batches_keep_their_promises_and_replay_exactly():
    overrides = PlanOverrides(has_batches=True)
    results = [run_seed(seed, overrides) for seed in range(WORLDS)]
    assert {each.plan.seed: each.violations for each in results if each.violations} == {}
    assert all(each.plan.batches for each in results)
    assert run_seed(0, overrides).frame_digest == results[0].frame_digest


def test_plans_have_bad_lines_repeated_ids_cancels_and_windows():
    batches = [each for seed in range(40) for each in plan_world(seed, PlanOverrides(has_batches=True)).batches]
    lines = [each for batch in batches for each in batch.lines]
    assert {each.defect for each in lines} == set(LineDefect)
    assert any(len({each.custom_id for each in batch.lines}) < len(batch.lines) for batch in batches)
    assert any(batch.cancels_after_s is not None for batch in batches)
    assert any(batch.window_s is not None for batch in batches)
