"""Input and output of a request: the generation plan, and the output stream of its answer over all attempts."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.edge.lifecycle.effects import Emit, Finish
from penstock.edge.output.answer import PLAIN, OutputFormat, parse_answer
from penstock.edge.request.tools import ToolCall
from penstock.edge.text.detokenizer import RecordingDetokenizer, TextDelta
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.mesh.forms import Form
from penstock.mesh.model_key import model_key
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sampling

BYTES_PER_ID = 4  # in an array of token ids

LikeliestTokens = tuple[Sequence[int], Sequence[float]]  # ids at one position and their logprobs, the likeliest first


class IncrementalDetokenizer(Protocol):
    """Converts tokens of one answer to text. Holds back text that may become a character or a stop string."""

    def push(self, token_id: int) -> TextDelta: ...

    def flush(self) -> str:
        """Return the text that is held back at the end of the answer."""

    def new(self) -> "IncrementalDetokenizer":
        """Return a detokenizer of another answer to the same prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPlan:
    """One request as token ids and sizes: the complete input of a run on any worker."""

    model: str  # name
    prompt_ids: Sequence[int]
    max_output_tokens: int  # granted for the whole answer, resumed tokens included
    sampling: Sampling  # always with a seed
    detokenizer: IncrementalDetokenizer  # has consumed the resumed ids, whose text the client has
    resumed_ids: Sequence[int] = ()  # tokens of the answer that the client has already
    resumed_stop: str = ""  # the stop string that the resumed ids ended with
    eos_ids: frozenset[int] = frozenset()  # empty if end-of-sequence tokens are ignored
    ignore_eos: bool = False
    block_size: int = 0  # tokens per KV block of the model, for the hashes of prompt prefixes
    model_version: str = ""  # digest of the model card by which the prompt was tokenized
    form: Form | None = None  # of the output; None: free text
    output_format: OutputFormat = PLAIN  # of the text
    describe_token: DescribeToken = no_text
    embedding_size: int = 0  # numbers of the embedding that is wanted in place of output; 0: none

    def tool_calls(self, answer_id: str) -> tuple[ToolCall, ...]:
        """Return the calls in the text so far. Empty if there are no tools to call."""
        if not isinstance(self.detokenizer, RecordingDetokenizer):
            return ()
        return parse_answer(self.output_format, self.detokenizer.text, answer_id).calls

    @property
    def prompt_bytes(self) -> int:
        return BYTES_PER_ID * len(self.prompt_ids)

    @property
    def model_key(self) -> str:
        return model_key(self.model, self.model_version)

    def with_seed(self, seed: int) -> "GenerationPlan":
        """Return the plan of another answer to the same prompt."""
        sampling = Sampling()
        sampling.CopyFrom(self.sampling)
        sampling.seed = seed
        return replace(self, sampling=sampling, detokenizer=self.detokenizer.new())


class OutputStream:
    """Token ids emitted so far, including those of earlier attempts and of a resumed answer."""

    def __init__(self, plan: GenerationPlan) -> None:
        self.token_ids = array("I", plan.resumed_ids)
        self.duplicate_tokens = 0  # tokens that were received again and dropped
        self.stop_string = plan.resumed_stop
        self._resumed_tokens = len(self.token_ids)
        self._plan = plan

    def __repr__(self) -> str:
        return f"<OutputStream {len(self.token_ids)}/{self._plan.max_output_tokens}>"

    @property
    def output_tokens(self) -> int:
        """Tokens generated for this request. Tokens that the client resumed with are not charged again."""
        return len(self.token_ids) - self._resumed_tokens

    @property
    def tokens_left(self) -> int:
        return self._plan.max_output_tokens - len(self.token_ids)

    def append(self, index: int, token_id: int, logprob: float | None, top: LikeliestTokens | None) -> Emit | None:
        """Return the effect that emits the token, or None for a duplicate. Raises IndexError if a token is missing."""
        if index != len(self.token_ids):
            if index > len(self.token_ids):
                raise IndexError(f"token {index} was received where {len(self.token_ids)} is next")
            self.duplicate_tokens += 1
            return None
        self.token_ids.append(token_id)
        text, self.stop_string = self._plan.detokenizer.push(token_id)
        if top:
            return Emit(text, (token_id,), index, () if logprob is None else (logprob,), *top)
        return Emit(text, (token_id,), index, () if logprob is None else (logprob,))

    def flush(self) -> list[Emit]:
        """Return the text that was held back until the end of the answer."""
        text = "" if self.stop_string else self._plan.detokenizer.flush()
        return [Emit(text, (), len(self.token_ids), ())] if text else []

    def finish_if_complete(self) -> Finish | None:
        """Return the ending if the tokens so far complete the answer, even without a report of the worker.

        An embedding comes with that report only.
        """
        if self._plan.embedding_size:
            return None
        if self.stop_string:
            return Finish(FINISH_REASON_STOP, self.stop_string)
        if self.token_ids and self.token_ids[-1] in self._plan.eos_ids:
            return Finish(FINISH_REASON_STOP, "")
        return Finish(FINISH_REASON_LENGTH, "") if self.tokens_left <= 0 else None
