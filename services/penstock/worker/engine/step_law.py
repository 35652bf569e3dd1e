"""How long an engine's step takes, as a law."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """Time of a step, linear in its work. The defaults are one mid-size GPU's."""

    base_s: float = 0.006
    per_prefill_token_s: float = 0.0001
    per_decode_seq_s: float = 0.00005
    per_context_token_s: float = 0.0  # for each position that a decode reads

    def duration_s(self, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> float:
        return (
            self.base_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_seq_s * decode_seqs
            + self.per_context_token_s * context_tokens
        )
