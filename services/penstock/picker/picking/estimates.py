"""Estimates that the picker learns from responses: bytes per token, lengths of answers, and the time a slot is held."""

from dataclasses import dataclass, field

from penstock.picker.picking.pick import PickRequest, Usage
from penstock.queue.prediction.estimators import OutputLengthPredictor

INITIAL_BYTES_PER_TOKEN = 4.0
BYTES_PER_TOKEN_BOUNDS = 1.0, 8.0
MIN_LEARNED_BYTES = 512  # of a prompt; the chat template dominates shorter ones
GAIN = 1 / 32  # weight of the latest response in a mean


@dataclass(slots=True)
class Estimates:
    """All models share one mean of bytes per token and of hold times, as the servers of one pool are alike."""

    bytes_per_token: float = INITIAL_BYTES_PER_TOKEN
    mean_hold: float = 0.0  # s from the placement of a request to the end of its response; 0: unknown
    lengths: OutputLengthPredictor = field(default_factory=OutputLengthPredictor)

    def prompt_tokens(self, prompt_bytes: int) -> int:
        return max(1, round(prompt_bytes / self.bytes_per_token))

    def output_tokens(self, request: PickRequest) -> int:
        """Return the tokens of the answer that are expected, from 1 to the limit of the request."""
        return self.lengths.predict(request.model, request.tenant, request.max_output_tokens)

    def record_hold(self, seconds: float) -> None:
        self.mean_hold += (seconds - self.mean_hold) * (GAIN if self.mean_hold else 1.0)

    def record_usage(self, request: PickRequest, usage: Usage) -> None:
        """Record the tokens of a complete answer. Values that no request has are ignored."""
        if 0 < usage.output_tokens <= request.max_output_tokens:
            self.lengths.record(request.model, request.tenant, request.max_output_tokens, usage.output_tokens)
        if request.prompt_bytes >= MIN_LEARNED_BYTES and usage.prompt_tokens > 0:
            low, high = BYTES_PER_TOKEN_BOUNDS
            measured = min(high, max(low, request.prompt_bytes / usage.prompt_tokens))
            self.bytes_per_token += GAIN * (measured - self.bytes_per_token)

    def wait(self, ahead: float, free: int, slots: int) -> float | None:
        """Return the s until a request behind `ahead` others has a slot; None without a completed request.

        By Little's law, `slots` that are all in use are released at `slots` per mean hold time.
        """
        if ahead < free:
            return 0.0
        if not self.mean_hold:
            return None
        return (ahead - free + 1) * self.mean_hold / max(1, slots)
