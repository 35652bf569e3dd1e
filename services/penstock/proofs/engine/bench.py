"""The model, loaded once, under as many batches as there are things to prove."""

from dataclasses import dataclass

import torch

from penstock.simulator.calibration.timed_engine import Turn, WatchedEngine
from penstock.worker.engine.batch import Batch
from penstock.worker.engine.batching import BatchingPolicy, ContinuousBatching
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.build_torch import build_torch_engine
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.native import NativeUnavailable, check_native
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.weights import ModelShape

SLOTS = 32
BLOCK_SIZE = 16
BLOCKS = SLOTS * 42  # 672 tokens for each slot


@dataclass(frozen=True, slots=True)
class Bench:
    watched: WatchedEngine
    card: ModelCard
    shape: ModelShape
    dtype: torch.dtype
    threads: int

    @property
    def ids(self) -> range:
        return self.card.plain_ids()

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def begin(
        self,
        specs: list[SequenceSpec],
        *,
        batching: BatchingPolicy | None = None,
        blocks: int = BLOCKS,
        slots: int = SLOTS,
    ) -> None:
        """Start over with an empty batch of `specs`."""
        self.watched.engine.batch = Batch(
            pool=BlockPool(blocks, BLOCK_SIZE),
            policy=batching or ContinuousBatching(),
            slots=slots,
            context_length=self.card.context_length,
        )
        for spec in specs:
            self.watched.engine.add(spec)

    def warm(self) -> None:
        """Write all KV memory once: the system gives it as it is first written, and that takes as long as a step."""
        tokens = min((BLOCKS // SLOTS - 1) * BLOCK_SIZE, self.card.context_length - 1)
        self.begin(
            [SequenceSpec(seq_id=place, token_ids=[place] * tokens, max_output_tokens=1) for place in range(SLOTS)]
        )
        self.watched.finish()

    def decode_steps(self, specs: list[SequenceSpec], count: int) -> list[Turn]:
        """Time `count` steps in which all of `specs` decode."""
        self.begin(specs)
        while self.watched.engine.step().decode_seqs < len(specs):
            pass
        return [self.watched.step()[1] for _ in range(count)]

    def texts(self, specs: list[SequenceSpec]) -> dict[int, list[int]]:
        """Every sequence's tokens, by its id, all of them run at once."""
        self.begin(specs)
        found: dict[int, list[int]] = {spec.seq_id: [] for spec in specs}
        while self.watched.engine.has_work:
            result = self.watched.engine.step()
            for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
                found[seq_id].append(token)
        return found


def open_bench(model: str, threads: int) -> Bench:
    shape = read_checkpoint(*locate_model(model)).shape
    dtype = _dtype(shape)
    options = EngineOptions(
        model=model,
        dtype="bfloat16" if dtype == torch.bfloat16 else "float32",
        threads=threads,
        slots=SLOTS,
        block_size=BLOCK_SIZE,
        kv_blocks=BLOCKS,
    )
    engine, card = build_torch_engine(options)
    return Bench(WatchedEngine(engine), card, shape, dtype, threads)


def _dtype(shape: ModelShape) -> torch.dtype:
    """What `auto` comes to."""
    if torch.cuda.is_available():
        return torch.bfloat16
    try:
        return torch.bfloat16 if check_native(shape, BLOCK_SIZE) else torch.float32
    except NativeUnavailable:
        return torch.float32
