"""The tokens of one answer: each index exactly once, in order, whatever the runs behind it did."""

from penstock.edge.flight.effects import Emit, Finish
from penstock.edge.flight.plan import Plan
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


class Answer:
    """Ids emitted so far, those of earlier attempts and of a resumed answer included."""

    def __init__(self, plan: Plan) -> None:
        self.ids = list(plan.resumed_ids)
        self.repeated = 0  # tokens that came again and were dropped
        self.met_stop = plan.resumed_stop
        self._resumed = len(self.ids)
        self._plan = plan

    def __repr__(self) -> str:
        return f"<Answer {len(self.ids)}/{self._plan.max_output_tokens}>"

    @property
    def output_tokens(self) -> int:
        """Tokens made for this request: those the client brought along are not charged again."""
        return len(self.ids) - self._resumed

    @property
    def tokens_left(self) -> int:
        return self._plan.max_output_tokens - len(self.ids)

    def take(self, index: int, token_id: int, logprob: float | None) -> Emit | None:
        """Return the next piece; None for a token that was emitted before. Raises IndexError where one is missing."""
        if index != len(self.ids):
            if index > len(self.ids):
                raise IndexError(f"token {index} came where {len(self.ids)} was next")
            self.repeated += 1
            return None
        self.ids.append(token_id)
        text, self.met_stop = self._plan.transcript.push(token_id)
        return Emit(text, (token_id,), index, () if logprob is None else (logprob,))

    def rest(self) -> list[Emit]:
        """Return the text that was held back, now that the answer is over."""
        text = "" if self.met_stop else self._plan.transcript.finish()
        return [Emit(text, (), len(self.ids), ())] if text else []

    def ending(self) -> Finish | None:
        """Return how the answer ended if its tokens say so by themselves, which a lost worker could not tell us."""
        if self.met_stop:
            return Finish(FINISH_REASON_STOP, self.met_stop)
        if self.ids and self.ids[-1] in self._plan.eos_ids:
            return Finish(FINISH_REASON_STOP, "")
        return Finish(FINISH_REASON_LENGTH, "") if self.tokens_left <= 0 else None
