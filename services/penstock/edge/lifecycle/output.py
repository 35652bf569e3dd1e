"""Output stream of one answer: each token index exactly once and in order, over all attempts."""

from penstock.edge.lifecycle.effects import Emit, Finish
from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


class OutputStream:
    """Token ids emitted so far, including those of earlier attempts and of a resumed answer."""

    def __init__(self, plan: GenerationPlan) -> None:
        self.token_ids = list(plan.resumed_ids)
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

    def append(self, index: int, token_id: int, logprob: float | None) -> Emit | None:
        """Return the effect that emits the token, or None for a duplicate. Raises IndexError if a token is missing."""
        if index != len(self.token_ids):
            if index > len(self.token_ids):
                raise IndexError(f"token {index} was received where {len(self.token_ids)} is next")
            self.duplicate_tokens += 1
            return None
        self.token_ids.append(token_id)
        text, self.stop_string = self._plan.detokenizer.push(token_id)
        return Emit(text, (token_id,), index, () if logprob is None else (logprob,))

    def flush(self) -> list[Emit]:
        """Return the text that was held back until the end of the answer."""
        text = "" if self.stop_string else self._plan.detokenizer.flush()
        return [Emit(text, (), len(self.token_ids), ())] if text else []

    def finish_if_complete(self) -> Finish | None:
        """Return the ending if the tokens so far complete the answer, even without a report of the worker."""
        if self.stop_string:
            return Finish(FINISH_REASON_STOP, self.stop_string)
        if self.token_ids and self.token_ids[-1] in self._plan.eos_ids:
            return Finish(FINISH_REASON_STOP, "")
        return Finish(FINISH_REASON_LENGTH, "") if self.tokens_left <= 0 else None
