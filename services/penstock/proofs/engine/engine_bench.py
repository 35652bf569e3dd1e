"""The model, loaded once, with a new batch for each measurement."""

from dataclasses import dataclass

import torch

from penstock.simulator.calibration.timed_engine import StepTiming, TimedEngine
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import BatchingPolicy, ContinuousBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.native import NativeUnavailable, check_native
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch.build import build_torch_engine
from penstock.worker.engine.torch.weights import ModelShape

SLOTS = 32
BLOCK_SIZE = 16
KV_BLOCKS = SLOTS * 42  # 672 tokens for each slot


@dataclass(frozen=True, slots=True)
class EngineBench:
    timed_engine: TimedEngine
    card: ModelCard
    shape: ModelShape
    dtype: torch.dtype
    threads: int

    @property
    def token_ids(self) -> range:
        return self.card.plain_ids()

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def reset(
        self,
        specs: list[SequenceSpec],
        *,
        policy: BatchingPolicy | None = None,
        blocks: int = KV_BLOCKS,
        slots: int = SLOTS,
    ) -> None:
        """Replace the batch by a new one of `specs`."""
        self.timed_engine.engine.batch = Batch(
            pool=BlockPool(blocks, BLOCK_SIZE),
            policy=policy or ContinuousBatching(),
            slots=slots,
            context_length=self.card.context_length,
        )
        for spec in specs:
            self.timed_engine.engine.add(spec)

    def write_kv_memory(self) -> None:
        """Write all KV memory once; a step would wait while the system allocates pages at their first write."""
        tokens = min((KV_BLOCKS // SLOTS - 1) * BLOCK_SIZE, self.card.context_length - 1)
        self.reset(
            [SequenceSpec(seq_id=place, token_ids=[place] * tokens, max_output_tokens=1) for place in range(SLOTS)]
        )
        self.timed_engine.run_to_end()

    def decode_steps(self, specs: list[SequenceSpec], count: int) -> list[StepTiming]:
        """Time `count` steps in which all of `specs` decode."""
        self.reset(specs)
        while self.timed_engine.engine.step().decode_seqs < len(specs):
            pass
        return [self.timed_engine.step()[1] for _ in range(count)]

    def generate(self, specs: list[SequenceSpec]) -> dict[int, list[int]]:
        """Run all of `specs` at once; return the tokens of each sequence by its id."""
        self.reset(specs)
        tokens: dict[int, list[int]] = {spec.seq_id: [] for spec in specs}
        while self.timed_engine.engine.has_work:
            result = self.timed_engine.engine.step()
            for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
                tokens[seq_id].append(token)
        return tokens


def open_engine_bench(model: str, threads: int) -> EngineBench:
    shape = read_checkpoint(*locate_model(model)).shape
    dtype = _dtype_of(shape)
    options = EngineOptions(
        model=model,
        dtype="bfloat16" if dtype == torch.bfloat16 else "float32",
        threads=threads,
        slots=SLOTS,
        block_size=BLOCK_SIZE,
        kv_blocks=KV_BLOCKS,
    )
    engine, card = build_torch_engine(options)
    return EngineBench(TimedEngine(engine), card, shape, dtype, threads)


def _dtype_of(shape: ModelShape) -> torch.dtype:
    """Return the dtype that `auto` selects."""
    if torch.cuda.is_available():
        return torch.bfloat16
    try:
        return torch.bfloat16 if check_native(shape, BLOCK_SIZE) else torch.float32
    except NativeUnavailable:
        return torch.float32
