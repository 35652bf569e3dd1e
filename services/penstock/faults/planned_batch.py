"""Batches that the clients of a world create: files of lines, some of which cannot be answered."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from penstock.batch.lines.line import line_id
from penstock.faults.checks import oracle

SEED_DIGITS = 16  # of a line's id, which is the seed of a line without one
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_TOKEN_LIMITS = {CHAT: "max_completion_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}


class LineDefect(StrEnum):
    """Why a line cannot be answered; the code of its error follows from it."""

    NONE = ""
    NO_JSON = "invalid_json_line"
    NO_CUSTOM_ID = "invalid_custom_id"
    WRONG_METHOD = "invalid_method"
    WRONG_URL = "mismatched_endpoint"
    NO_BODY = "invalid_body"
    STREAMED = "stream_unsupported"
    UNKNOWN_MODEL = "model_not_found"
    WRONG_FIELD = "invalid_argument"
    CRASHING = "engine_crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLine:
    """One line. Prompts of one world differ in length, by which charges are matched to lines."""

    custom_id: str
    text: str  # of letters
    max_output_tokens: int
    seed: int | None  # None: the line has none, so that its seed follows from its id
    ignore_eos: bool
    defect: LineDefect = LineDefect.NONE
    crash_token_index: int | None = None  # as of PlannedRequest

    @property
    def prompt_tokens(self) -> int:
        return len(self.text)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The ids of its text, by version 0 of the model."""
        return oracle.letter_ids(self.text, 0)

    @property
    def has_custom_id(self) -> bool:
        """Whether the row of the line can name it."""
        return self.defect not in (LineDefect.NO_JSON, LineDefect.NO_CUSTOM_ID)

    def content(self, endpoint: str) -> bytes:
        """Return the line as its client writes it, without the line break."""
        members: dict[str, Any] = {
            "custom_id": self.custom_id,
            "method": "GET" if self.defect is LineDefect.WRONG_METHOD else "POST",
            "url": "/v1/other" if self.defect is LineDefect.WRONG_URL else endpoint,
            "body": "none" if self.defect is LineDefect.NO_BODY else self._body(endpoint),
        }
        if self.defect is LineDefect.NO_CUSTOM_ID:
            del members["custom_id"]
        content = orjson.dumps(members)
        return content[:-1] if self.defect is LineDefect.NO_JSON else content

    def _body(self, endpoint: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "unknown" if self.defect is LineDefect.UNKNOWN_MODEL else oracle.MODEL_NAME,
            _TOKEN_LIMITS[endpoint]: self.max_output_tokens,
            "temperature": -1.0 if self.defect is LineDefect.WRONG_FIELD else 0.0,
            "ignore_eos": self.ignore_eos,
        }
        match endpoint:
            case "/v1/chat/completions":
                body["messages"] = [{"role": "user", "content": self.text}]
            case "/v1/completions":
                body["prompt"] = self.text
            case _:
                body["input"] = self.text
        if self.seed is not None:
            body["seed"] = self.seed
        if self.defect is LineDefect.STREAMED:
            body["stream"] = True
        return body

    def expected(self, call_id: str, version: int = 0) -> oracle.ExpectedAnswer:
        """Return the answer by a version of the model. `call_id`: the line's id."""
        return oracle.expected_answer(
            oracle.letter_ids(self.text, version),
            int(call_id[:SEED_DIGITS], 16) if self.seed is None else self.seed,
            self.max_output_tokens,
            ignore_eos=self.ignore_eos,
            stops=(),
            version=version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """One file, and the batch that its client creates of it and watches until it has ended."""

    name: str  # in the metadata of the batch
    starts_at: float  # s from the beginning of the load
    endpoint: str
    lines: tuple[PlannedLine, ...]
    blank_before: frozenset[int] = frozenset()  # numbers of lines before which the file has a blank one
    edge: int = 0  # number of the edge that the client calls first
    tenant: int = 0
    window_s: int | None = None  # s; None: longer than the world lasts
    cancels_after_s: float | None = None  # s from the answer of its creation; None: never

    @property
    def content(self) -> bytes:
        """Return the file. Its last line has no line break."""
        lines = (
            (b"\n" if number in self.blank_before else b"") + line.content(self.endpoint)
            for number, line in enumerate(self.lines)
        )
        return b"\n".join(lines)

    def line_ids(self, batch_id: str) -> list[str]:
        return [line_id(batch_id, number) for number in range(len(self.lines))]
