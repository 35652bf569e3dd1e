"""The lines of a proof's batch, and the checks of their rows in the output."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock.batch.lines.line import line_id

ENDPOINT = "/v1/completions"
PROMPTS = 64  # each is repeated, so that answers to it can be compared
MIN_TOKENS = 2  # of an answer


def write_lines(path: Path, lines: int, tokens: int) -> None:
    """Write a file of `lines` lines, whose greedy answers have `MIN_TOKENS` to `tokens` tokens."""
    with path.open("wb") as file:
        for number in range(lines):
            body = {
                "prompt": f"prompt {number % PROMPTS} of a batch",
                "max_tokens": tokens_of(number, tokens),
                "temperature": 0,
                "seed": number % PROMPTS,  # the simulated engine follows it also without sampling
                "ignore_eos": True,
            }
            row = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(orjson.dumps(row) + b"\n")


def tokens_of(number: int, tokens: int) -> int:
    """Return the tokens of the answer of a line; lines with one prompt have answers of one length."""
    return MIN_TOKENS + number % PROMPTS % (tokens - MIN_TOKENS + 1)


@dataclass(slots=True)
class OutputFindings:
    """What the rows of a batch say. Feed it the rows of each file in order."""

    batch_id: str
    lines: int  # of the batch
    rows: int = 0
    errors: int = 0  # rows of the error file
    misplaced: int = 0  # rows whose line is not after that of the row before it
    doubled: int = 0  # rows of lines that have a row already
    foreign: int = 0  # rows without the id of an answer of their line
    changed: int = 0  # answers other than the first one to the same prompt
    error_codes: dict[str, int] = field(default_factory=dict)
    prompt_tokens: "array[int]" = field(init=False)  # by line; 0 without an answer
    output_tokens: "array[int]" = field(init=False)
    _has_row: bytearray = field(init=False)
    _texts: dict[int, str] = field(default_factory=dict)  # by prompt

    def __post_init__(self) -> None:
        self.prompt_tokens, self.output_tokens = (array("L", bytes(8 * self.lines)) for _ in range(2))
        self._has_row = bytearray(self.lines)

    @property
    def missing(self) -> int:
        """Lines without a row."""
        return self.lines - sum(self._has_row)

    def has_row(self, number: int) -> bool:
        return bool(self._has_row[number])

    def read(self, rows: Iterable[bytes], *, is_error: bool) -> None:
        last = -1
        for content in rows:
            row = orjson.loads(content)
            self.rows += 1
            number = int(row["custom_id"].removeprefix("line-"))
            self.foreign += row["id"] != f"batch_req_{line_id(self.batch_id, number)}"
            self.misplaced += number <= last
            self.doubled += self._has_row[number]
            self._has_row[number] = 1
            last = number
            if is_error:
                self._add_error(row)
            else:
                self._add_answer(number, row["response"]["body"])

    def _add_error(self, row: Any) -> None:
        self.errors += 1
        code = row["error"]["code"] if row["error"] else row["response"]["body"]["error"]["code"]
        self.error_codes[code] = self.error_codes.get(code, 0) + 1

    def _add_answer(self, number: int, body: Any) -> None:
        self.changed += (
            self._texts.setdefault(number % PROMPTS, body["choices"][0]["text"]) != body["choices"][0]["text"]
        )
        self.prompt_tokens[number] = body["usage"]["prompt_tokens"]
        self.output_tokens[number] = body["usage"]["completion_tokens"]
