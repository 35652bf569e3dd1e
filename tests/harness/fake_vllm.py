"""A fake of the parts of vLLM that the adapter uses: its engine, and the records of its scheduler.

Underneath is our own simulated batch, so tokens, blocks and cached prefixes are consistent. Field names and their
meaning are vLLM 0.32's; the test against the real vLLM checks that it still has them.
"""

import copy
from types import SimpleNamespace

import numpy as np

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.grammar.compiler import GrammarCompiler
from penstock.worker.engine.grammar.forms import FormSequences
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.simulated.engine import SimulatedEngine
from penstock.worker.engine.simulated.step_time import StepTimeModel
from penstock.worker.engine.vllm.engine import VllmEngine
from penstock.worker.engine.vllm.params import EXTRA_ARGS_KEY, sampling_fields

VOCABULARY = 304


class _HashingEngine(SimulatedEngine):
    """Each token is a function of all tokens before it, as with a model, among those that a mask allows.

    `params`: vLLM's, by request ID.
    """

    def __init__(self, batch, token_ids, params):
        super().__init__(batch, StepTimeModel(), token_ids)
        self._params = params

    def _token(self, seq_id, position):
        ids = self.batch._sequences[seq_id].ids
        extra = (self._params[str(seq_id)].get("extra_args") or {}).get(EXTRA_ARGS_KEY)
        choices = self._token_ids
        if extra and extra.mask:
            prompt = self.batch._sequences[seq_id].spec.token_ids
            choices = np.flatnonzero(extra.mask.allowed(ids[len(prompt) - extra.emitted :]))
        return int(choices[hash(tuple(ids)) % len(choices)])


class FakeVllm:
    """A fake `LLMEngine` that checks that the real one accepts each argument."""

    def __init__(self, *, blocks, block_size, slots, context, token_budget, token_ids):
        self.params = {}  # by request ID, in order of arrival
        self.steps = 0
        batch = Batch(
            pool=BlockPool(blocks, block_size),
            policy=ContinuousBatching(token_budget=token_budget),
            slots=slots,
            context_length=context,
        )
        self._engine = _HashingEngine(batch, token_ids, self.params)
        self._cached = {}
        self.scheduler = SimpleNamespace(
            requests={},
            running=batch.running,
            kv_cache_manager=SimpleNamespace(
                block_pool=SimpleNamespace(
                    num_gpu_blocks=blocks + 1,
                    get_num_free_blocks=lambda: batch.pool.free,
                    cached_block_hash_to_block=_LengthOnly(lambda: batch.pool.cached),
                )
            ),
        )

    def add_request(self, request_id, prompt, params):
        assert isinstance(request_id, str)
        assert prompt["type"] == "token"
        if any(token >= VOCABULARY for token in params["logit_bias"] or ()):
            raise ValueError("token_id(s) in logit_bias are out of vocabulary")
        self.params[request_id] = params if params["skip_clone"] else copy.deepcopy(params)
        seq_id = int(request_id)
        self._engine.add(
            SequenceSpec(
                seq_id=seq_id,
                token_ids=prompt["prompt_token_ids"],
                max_output_tokens=params["max_tokens"],
                stop_ids=frozenset(params["stop_token_ids"]),
                ignore_eos=True,
                cache_salt=prompt["cache_salt"].encode(),
            )
        )
        name = f"{request_id}-random"
        self.scheduler.requests[name] = SimpleNamespace(
            num_computed_tokens=0, num_preemptions=0, prefill_stats=SimpleNamespace(num_cached_tokens=0)
        )
        return name

    def abort_request(self, request_ids):
        for request_id in request_ids:
            assert self._engine.cancel(int(request_id))
            self._engine.batch._release_cancelled()  # the real vLLM frees at once as well

    def step(self):
        self.steps += 1
        before = list(self._engine.batch._sequences.values())
        result = self._engine.step()
        self._cached.update(result.admitted)
        for each in before:
            self._record(each)
        self.scheduler.running = self._engine.batch.running
        ends = {done.seq_id: done.reason.value for done in result.finished}
        return [self._output(seq_id, token, ends) for seq_id, token in zip(result.seq_ids, result.tokens, strict=True)]

    def _record(self, sequence):
        record = self.scheduler.requests[f"{sequence.spec.seq_id}-random"]
        record.num_preemptions += sequence.computed < record.num_computed_tokens
        record.num_computed_tokens = sequence.computed
        record.prefill_stats.num_cached_tokens = self._cached.get(sequence.spec.seq_id, 0)

    def _output(self, seq_id, token, ends):
        count = self.params[str(seq_id)]["logprobs"]
        others = {token + further: SimpleNamespace(logprob=-0.5 - further) for further in range(1, (count or 0) + 1)}
        logprobs = None if count is None else [others | {token: SimpleNamespace(logprob=-0.5)}]
        completion = SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason=ends.get(seq_id))
        return SimpleNamespace(
            request_id=str(seq_id),
            finished=seq_id in ends,
            num_cached_tokens=self._cached.get(seq_id, 0),
            outputs=[completion],
        )


class _LengthOnly:
    """A mapping of which only the length is read."""

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count()


def engine_on_fake_vllm(
    *, blocks=64, block_size=4, slots=4, context=96, token_budget=16, card=None, token_ids=range(3, 300)
):
    """`card`: of the model whose forms the engine enforces; None: none."""
    double = FakeVllm(
        blocks=blocks,
        block_size=block_size,
        slots=slots,
        context=context,
        token_budget=token_budget,
        token_ids=token_ids,
    )
    eos_ids = frozenset(card.eos_ids if card else ())
    return VllmEngine(
        double,
        double.scheduler,
        lambda spec, mask: sampling_fields(spec, eos_ids, mask),
        FormSequences(GrammarCompiler(card)) if card else None,
        eos_ids=eos_ids,
        slots=slots,
        block_size=block_size,
        context_length=context,
    )
