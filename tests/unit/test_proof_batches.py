"""The proof of batches finds rows and charges that are wrong, and reads on at another edge."""

import itertools
from array import array

import orjson
import pytest

from penstock.batch.lines.line import line_id
from penstock.bench.transcript import OK, Transcript
from penstock.proofs.batches.beside import WorkerUse, beside_lines
from penstock.proofs.batches.faults import MIN_KILLS, fault_sequence
from penstock.proofs.batches.lines import PROMPTS, OutputFindings, tokens_of, write_lines
from penstock.proofs.checks.line_charges import LineCharge, check_line_charges, explain_examples

BATCH = "batch_1"
LINES = PROMPTS + 2  # two prompts are repeated


def row(number, *, text=None, custom_id=None, **fields):
    body = {
        "choices": [{"text": text or f"answer {number % PROMPTS}"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    }
    whole = {
        "id": f"batch_req_{line_id(BATCH, number)}",
        "custom_id": custom_id or f"line-{number}",
        "response": {"status_code": 200, "body": body},
        "error": None,
    }
    return orjson.dumps(whole | fields)


def found(rows, errors=()):
    findings = OutputFindings(BATCH, LINES)
    findings.read(rows, is_error=False)
    findings.read(errors, is_error=True)
    return findings


def wrong(findings):
    names = ("missing", "misplaced", "doubled", "foreign", "changed", "errors")
    return {name: getattr(findings, name) for name in names if getattr(findings, name)}


def test_one_row_for_each_line_in_order_has_no_findings():
    findings = found(map(row, range(LINES)))
    assert wrong(findings) == {}
    assert findings.rows == LINES
    assert set(findings.prompt_tokens) == {7}
    assert set(findings.output_tokens) == {5}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(each) for each in (1, 0, *range(2, LINES))], {"misplaced": 1}),
        ([row(each) for each in (0, 0, *range(1, LINES))], {"misplaced": 1, "doubled": 1}),
        ([row(each) for each in range(1, LINES)], {"missing": 1}),
        (
            [row(each) for each in range(LINES - 1)] + [row(0, custom_id=f"line-{LINES - 1}", text="answer 1")],
            {"foreign": 1},
        ),
        ([row(each) for each in range(LINES - 1)] + [row(LINES - 1, text="other")], {"changed": 1}),
    ],
)
def test_a_wrong_row_is_found(rows, expected):
    assert wrong(found(rows)) == expected


def test_error_rows_are_counted_by_code_also_those_of_refused_calls():
    lost = row(0, response=None, error={"code": "line_lost", "message": "it was lost"})
    refused = row(1, response={"status_code": 400, "body": {"error": {"code": "invalid_argument"}}})
    findings = found(map(row, range(1, LINES)), [lost, refused])
    assert findings.error_codes == {"line_lost": 1, "invalid_argument": 1}
    assert wrong(findings) == {"doubled": 1, "errors": 2}


def test_the_lines_are_calls_of_a_batch_and_those_of_one_prompt_have_answers_of_one_length(tmp_path):
    write_lines(tmp_path / "lines", LINES, 8)
    rows = [orjson.loads(each) for each in (tmp_path / "lines").read_bytes().splitlines()]
    assert [each["custom_id"] for each in rows] == [f"line-{number}" for number in range(LINES)]
    assert rows[0]["body"] == rows[PROMPTS]["body"] != rows[1]["body"]
    assert {tokens_of(each, 8) for each in range(LINES)} == set(range(2, 9))


def charge(number, *, prompt=7, output=5, outcome="stop", at=1.0):
    return LineCharge(line_id(BATCH, number), prompt, output, outcome, at)


def charged(*charges):
    return check_line_charges(BATCH, array("L", [7, 7, 0]), array("L", [5, 5, 0]), charges)


def test_answers_that_are_charged_once_over_several_requests_have_no_findings():
    others = LineCharge("of a client", 3, 3, "stop", 9.0)
    findings = charged(charge(0), charge(1, prompt=7, output=2), charge(1, prompt=0, output=3, at=4.0), others)
    assert (findings.overcharged, findings.undercharged) == (0, 0)
    assert (findings.charged_tokens, findings.answered_tokens) == (10, 10)
    assert (findings.requests, findings.last_start) == (3, 4.0)


@pytest.mark.parametrize(
    ("charges", "expected"),
    [
        ([charge(0), charge(0), charge(1)], (1, 0)),
        ([charge(0)], (0, 1)),
        ([charge(0), charge(1), charge(2, prompt=0)], (1, 0)),  # a line without an answer
        ([charge(0), charge(1), charge(1, outcome="lost")], (0, 0)),  # of an edge that died
    ],
)
def test_a_line_that_is_charged_twice_or_not_is_found(charges, expected):
    findings = charged(*charges)
    assert (findings.overcharged, findings.undercharged) == expected


def test_a_wrong_charge_is_explained_by_the_rows_of_its_line():
    charges = [charge(0), charge(0, output=2, at=4.0), charge(1)]
    text = "line 0: charged (14, 7), answered (7, 5) (prompt, output tokens); rows: 7 + 5 stop at 1.000; 7 + 2 stop at"
    assert list(explain_examples(charged(*charges), charges)) == [f"{text} 4.000"]


def test_two_outages_come_amid_the_kills_which_have_no_end_unless_their_number_is_given():
    outages = ("freeze", "away")
    assert list(fault_sequence("kill", outages, 3)) == ["kill", *outages, "kill", "kill"]
    endless = list(itertools.islice(fault_sequence("kill", outages, None), 50))
    assert endless.index("freeze") == MIN_KILLS // 2
    assert endless.count("kill") == 48


def answered(ttft):
    return Transcript(0, 10.0, arrivals=[10.0 + ttft], tokens=1, outcome=OK)


def test_interactive_load_that_waits_for_a_batch_misses_the_goal():
    alone = [answered(0.1)] * 50
    use = WorkerUse(busy_share=0.96, slots_used=[0.5, 1.0])
    lines = {each.figure: each for each in beside_lines(alone, [answered(0.105)] * 50, use)}
    assert all(each.is_met for each in lines.values())
    assert lines["slots in use, mean"].measured == pytest.approx(75.0)
    late = {each.figure: each for each in beside_lines(alone, [answered(1.5)] * 50, WorkerUse(busy_share=0.5))}
    assert [name for name, each in late.items() if not each.is_met] == [
        "P99 TTFT beside a batch, times that alone",
        "interactive goodput beside a batch",
        "busy time of the least busy worker",
    ]
