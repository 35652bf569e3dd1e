"""Compares the charges of a batch in auth's ledger with the answers in its output. Pure."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.batch.lines.line import line_id
from penstock.proofs.checks.ledger import LOST_OUTCOME

MAX_EXAMPLES = 5  # lines with a wrong charge that the findings name


class LineCharge(NamedTuple):
    """One row of auth's ledger."""

    answer_id: str
    prompt_tokens: int
    output_tokens: int
    outcome: str
    reserved_at: float  # Unix s


@dataclass(slots=True, kw_only=True)
class LineChargeFindings:
    """Counts of lines, unless a field says otherwise."""

    charged_tokens: int = 0
    answered_tokens: int = 0
    overcharged: int = 0  # for more tokens than their answer has; also lines without an answer
    undercharged: int = 0
    requests: int = 0  # for lines; a line that runs again has several
    last_start: float = 0.0  # Unix s of the last request
    examples: dict[str, str] = field(default_factory=dict)  # answer ids of lines with a wrong charge, and what is wrong


def check_line_charges(
    batch_id: str, prompt_tokens: "array[int]", output_tokens: "array[int]", charges: Iterable[LineCharge]
) -> LineChargeFindings:
    """`prompt_tokens` and `output_tokens`: of the answer of each line; 0 without one."""
    lines = len(prompt_tokens)
    numbers = {line_id(batch_id, number): number for number in range(lines)}
    charged_prompts, charged_outputs = (array("L", bytes(8 * lines)) for _ in range(2))
    findings = LineChargeFindings(answered_tokens=sum(output_tokens))
    for each in charges:
        number = numbers.get(each.answer_id)
        if number is None:
            continue
        findings.requests += 1
        findings.last_start = max(findings.last_start, each.reserved_at)
        if each.outcome != LOST_OUTCOME:
            findings.charged_tokens += each.output_tokens
            charged_prompts[number] += each.prompt_tokens
            charged_outputs[number] += each.output_tokens
    for number in range(lines):
        charged = charged_prompts[number], charged_outputs[number]
        answered = prompt_tokens[number], output_tokens[number]
        findings.overcharged += charged[0] > answered[0] or charged[1] > answered[1]
        findings.undercharged += charged[0] < answered[0] or charged[1] < answered[1]
        if charged != answered and len(findings.examples) < MAX_EXAMPLES:
            findings.examples[line_id(batch_id, number)] = f"line {number}: charged {charged}, answered {answered}"
    return findings


def explain_examples(findings: LineChargeFindings, charges: Iterable[LineCharge]) -> Iterator[str]:
    """Yield a text for each example of a wrong charge, with the rows that the ledger has for it."""
    rows: dict[str, list[LineCharge]] = {answer_id: [] for answer_id in findings.examples}
    for each in charges if rows else ():
        if each.answer_id in rows:
            rows[each.answer_id].append(each)
    for answer_id, reason in findings.examples.items():
        found = "; ".join(
            f"{each.prompt_tokens} + {each.output_tokens} {each.outcome} at {each.reserved_at:.3f}"
            for each in rows[answer_id]
        )
        yield f"{reason} (prompt, output tokens); rows: {found or 'none'}"
