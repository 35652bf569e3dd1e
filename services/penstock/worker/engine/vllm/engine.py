"""The adapter of vLLM's engine to our `Engine` protocol, stepped by the loop of our engine process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.worker.engine.batching.errors import StartInvalid, check_spec
from penstock.worker.engine.interface import (
    Capacity,
    FinishReason,
    LikeliestTokens,
    SequenceAdmitted,
    SequenceCancelled,
    SequenceFinished,
    SequencePrefilled,
    SequenceSpec,
    StepResult,
)

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class VllmApi(Protocol):
    """The used part of `vllm.LLMEngine`."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> str: ...

    def abort_request(self, request_ids: list[str]) -> None: ...

    def step(self) -> list[Any]: ...


@dataclass(slots=True, eq=False)
class VllmSequence:
    """A sequence in vLLM. `request` is its record in vLLM's scheduler."""

    spec: SequenceSpec
    request: Any
    output_tokens: int = 0
    computed_positions: int = 0  # after the last step
    preemptions: int = 0
    cached_tokens: int | None = None  # None before its first step

    @property
    def known_tokens(self) -> int:
        """Number of prompt and output tokens so far."""
        return len(self.spec.token_ids) + self.output_tokens

    @property
    def max_total_tokens(self) -> int:
        return len(self.spec.token_ids) + self.spec.max_output_tokens


class VllmEngine:
    """Satisfies `Engine`. `scheduler` is vLLM's own, in this process, from which all state is read.

    Two figures are approximate: the number of cached free blocks is a lower bound, and the prefill of a preempted
    sequence includes its cached tokens.
    """

    def __init__(
        self,
        llm: VllmApi,
        scheduler: Any,
        params: Callable[[SequenceSpec], Any],
        *,
        slots: int,
        block_size: int,
        context_length: int,
    ) -> None:
        self._llm = llm
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._params = params
        self._slots = slots
        self._block_size = block_size
        self._context_length = context_length
        self._blocks = self._pool.num_gpu_blocks - 1  # one is the null block
        self._sequences: dict[int, VllmSequence] = {}
        self._cancelling: list[int] = []
        self._steps = 0

    def __repr__(self) -> str:
        return f"<VllmEngine step {self._steps}: {len(self._sequences)} sequences>"

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, spec: SequenceSpec) -> None:
        self._check(spec)
        # A sequence without a salt gets a unique one, so that it shares no blocks.
        salt = spec.cache_salt.hex() or f"sequence {spec.seq_id}"
        prompt = {"type": "token", "prompt_token_ids": list(spec.token_ids), "cache_salt": salt}
        try:
            name = self._llm.add_request(str(spec.seq_id), prompt, self._params(spec))
        except Exception as error:  # vLLM's errors have no common type, and one request's must not end the others
            raise StartInvalid(f"vLLM rejects the request: {error}") from error
        self._sequences[spec.seq_id] = VllmSequence(spec, self._scheduler.requests[name])

    def cancel(self, seq_id: int) -> bool:
        if seq_id not in self._sequences or seq_id in self._cancelling:
            return False
        self._cancelling.append(seq_id)
        return True

    def step(self) -> StepResult:
        self._steps += 1
        result = StepResult(self._steps, cancelled=[self._abort(seq_id) for seq_id in self._cancelling])
        self._cancelling.clear()
        if self._sequences:
            outputs = self._llm.step()
            output_by_id = {int(output.request_id): output for output in outputs}
            for sequence in self._sequences.values():
                self._record_progress(sequence, output_by_id.get(sequence.spec.seq_id), result)
            for seq_id, output in output_by_id.items():
                self._record_output(self._sequences[seq_id], output, result)
        return result

    def capacity(self) -> Capacity:
        sequences = self._sequences.values()
        free = self._pool.get_num_free_blocks()
        running = len(self._scheduler.running)
        return Capacity(
            slots=self._slots,
            slots_free=max(0, self._slots - running),
            blocks=self._blocks,
            blocks_free=free,
            blocks_cached=max(0, len(self._pool.cached_block_hash_to_block) - (self._blocks - free)),
            blocks_promised=sum(
                self._blocks_for(each.max_total_tokens) - self._blocks_for(each.computed_positions)
                for each in sequences
            ),
            block_size=self._block_size,
            waiting=len(self._sequences) - running,
            running=running,
            prefill_backlog_tokens=sum(
                each.known_tokens - each.computed_positions
                for each in sequences
                if each.known_tokens - each.computed_positions > 1
            ),
        )

    def _check(self, spec: SequenceSpec) -> None:
        if spec.seq_id in self._sequences:
            raise StartInvalid(f"sequence {spec.seq_id} already exists; choose another id")
        check_spec(spec, context_length=self._context_length, blocks=self._blocks, block_size=self._block_size)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _abort(self, seq_id: int) -> SequenceCancelled:
        free = self._pool.get_num_free_blocks()
        self._llm.abort_request([str(seq_id)])
        sequence = self._sequences.pop(seq_id)
        return SequenceCancelled(seq_id, sequence.output_tokens, self._pool.get_num_free_blocks() - free)

    def _record_progress(self, sequence: VllmSequence, output: Any | None, result: StepResult) -> None:
        """Record the step's work for one sequence from vLLM's own record, before its tokens are recorded."""
        request = sequence.request
        times = request.num_preemptions - sequence.preemptions
        result.preempted = (*result.preempted, *(sequence.spec.seq_id for _ in range(times)))
        sequence.preemptions = request.num_preemptions
        grown = request.num_computed_tokens - sequence.computed_positions
        sequence.computed_positions = request.num_computed_tokens
        if sequence.cached_tokens is None and grown > 0:
            cached = output.num_cached_tokens if output else request.prefill_stats.num_cached_tokens
            grown -= cached
            sequence.cached_tokens = min(cached, len(sequence.spec.token_ids) - sequence.spec.emitted)
            result.admitted.append(SequenceAdmitted(sequence.spec.seq_id, sequence.cached_tokens))
        if sequence.output_tokens and grown == 1:
            result.decode_seqs += 1
        else:
            result.prefilled.append(SequencePrefilled(sequence.spec.seq_id, max(0, grown)))
            result.prefill_tokens += max(0, grown)

    def _record_output(self, sequence: VllmSequence, output: Any, result: StepResult) -> None:
        [completion] = output.outputs
        spec = sequence.spec
        for place, token in enumerate(completion.token_ids):
            result.seq_ids.append(spec.seq_id)
            result.tokens.append(token)
            result.indexes.append(spec.emitted + sequence.output_tokens)
            result.logprobs.append(completion.logprobs[place][token].logprob if spec.sampling.logprobs else 0.0)
            if spec.sampling.top_logprobs:
                result.likeliest[len(result.tokens) - 1] = _likeliest(completion.logprobs[place], spec)
            sequence.output_tokens += 1
        if output.finished:
            if completion.finish_reason not in _REASONS:
                raise RuntimeError(
                    f"vLLM ended sequence {spec.seq_id} by {completion.finish_reason!r}; its log says why"
                )
            reason = _REASONS[completion.finish_reason]
            result.finished.append(
                SequenceFinished(spec.seq_id, reason, sequence.output_tokens, sequence.cached_tokens or 0)
            )
            del self._sequences[spec.seq_id]


def _likeliest(logprobs: Mapping[int, Any], spec: SequenceSpec) -> LikeliestTokens:
    """Return the likeliest tokens of one position. vLLM's `logprobs` have the drawn token, too, in any order."""
    by_id = {token: each.logprob for token, each in logprobs.items()}
    token_ids = sorted(by_id, key=lambda token: -by_id[token])[: spec.sampling.top_logprobs]
    return LikeliestTokens(token_ids, [by_id[token] for token in token_ids])
