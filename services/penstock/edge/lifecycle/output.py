"""The tokens of one answer: each index exactly once, in order, whatever the runs behind it did."""

from penstock.edge.lifecycle.effects import Emit, Finish
from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


class OutputStream:
    """Ids emitted so far, those of earlier attempts and of a resumed answer included."""

    def __init__(self, plan: GenerationPlan) -> None:
        self.token_ids = list(plan.resumed_ids)
        self.duplicate_tokens = 0  # tokens that came again and were dropped
        self.stop_string = plan.resumed_stop
        self._resumed_tokens = len(self.token_ids)
        self._plan = plan

    def __repr__(self) -> str:
        return f"<Answer {len(self.token_ids)}/{self._plan.max_output_tokens}>"

    @property
    def output_tokens(self) -> int:
        """Tokens made for this request: those the client brought along are not charged again."""
        return len(self.token_ids) - self._resumed_tokens

    @property
    def tokens_left(self) -> int:
        return self._plan.max_output_tokens - len(self.token_ids)

    def append(self, index: int, token_id: int, logprob: float | None) -> Emit | None:
        """Return the next piece; None for a token that was emitted before. Raises IndexError where one is missing."""
        if index != len(self.token_ids):
            if index > len(self.token_ids):
                raise IndexError(f"token {index} came where {len(self.token_ids)} was next")
            self.duplicate_tokens += 1
            return None
        self.token_ids.append(token_id)
        text, self.stop_string = self._plan.detokenizer.push(token_id)
        return Emit(text, (token_id,), index, () if logprob is None else (logprob,))

    def flush(self) -> list[Emit]:
        """Return the text that was held back, now that the answer is over."""
        text = "" if self.stop_string else self._plan.detokenizer.flush()
        return [Emit(text, (), len(self.token_ids), ())] if text else []

    def finish_if_complete(self) -> Finish | None:
        """Return how the answer ended if its tokens say so by themselves, which a lost worker could not tell us."""
        if self.stop_string:
            return Finish(FINISH_REASON_STOP, self.stop_string)
        if self.token_ids and self.token_ids[-1] in self._plan.eos_ids:
            return Finish(FINISH_REASON_STOP, "")
        return Finish(FINISH_REASON_LENGTH, "") if self.tokens_left <= 0 else None
