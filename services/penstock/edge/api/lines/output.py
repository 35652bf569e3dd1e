"""Output of a line so far: the state by which another edge continues it."""

from penstock.mesh.v1.batch_pb2 import LineState
from penstock.v1.inference_pb2 import Accepted, Delta


class LineOutput:
    """Collects the deltas of one answer, after those of an earlier run."""

    def __init__(self, begun: LineState | None) -> None:
        self._texts: list[str] = []
        self._tokens = Delta()  # without its text
        self._rest = ""  # text that no token has; it is generated again by the edge that continues
        self._reported = 0  # tokens
        if begun:
            self.add(_delta_of(begun))
            self._reported = self.tokens

    @property
    def tokens(self) -> int:
        return len(self._tokens.token_ids)

    @property
    def has_grown(self) -> bool:
        """Whether there are tokens that no `state` has had."""
        return self.tokens > self._reported

    @property
    def text(self) -> str:
        return "".join(self._texts) + self._rest

    def add(self, delta: Delta) -> None:
        if not delta.token_ids:
            self._rest += delta.text
            return
        self._texts.append(delta.text)
        tokens = self._tokens
        tokens.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            tokens.logprobs.extend(delta.logprobs)
            tokens.top_token_ids.extend(delta.top_token_ids)
            tokens.top_logprobs.extend(delta.top_logprobs)

    def whole(self) -> Delta:
        """Return the answer so far as one delta."""
        whole = Delta(text="".join(self._texts))
        whole.MergeFrom(self._tokens)
        return whole

    def state(self, accepted: Accepted) -> LineState:
        """Return what another edge needs to continue, and count it as reported."""
        self._reported = self.tokens
        tokens = self._tokens
        return LineState(
            model=accepted.model,
            model_version=accepted.model_version,
            text="".join(self._texts),
            token_ids=tokens.token_ids,
            logprobs=tokens.logprobs,
            top_token_ids=tokens.top_token_ids,
            top_logprobs=tokens.top_logprobs,
        )


def _delta_of(state: LineState) -> Delta:
    return Delta(
        text=state.text,
        token_ids=state.token_ids,
        logprobs=state.logprobs,
        top_token_ids=state.top_token_ids,
        top_logprobs=state.top_logprobs,
    )
