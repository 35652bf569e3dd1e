"""Runs a step's plan on a GPU. Owns the KV cache and the graphs of decode steps."""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.worker.engine.batching.plan import Slice, StepPlan
from penstock.worker.engine.batching.sequence import Sequence
from penstock.worker.engine.cuda.decoder import Decoder
from penstock.worker.engine.cuda.step import StepPacker, StepShape, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.torch.kv_cache import allocate_kv
from penstock.worker.engine.torch.weights import ModelShape, Weights


class CudaRunner:
    """Steps of decodes alone replay a graph, padded to a power of two rows; steps with prefills launch their kernels.

    `forward` never waits for the GPU: a step's one wait is for the sampled ids. So a chunk of a prefill that samples
    nothing is still being computed while the next step is planned, packed and launched.

    Attention gives a row the same bits in any batch and any chunks of its prefill. cuBLAS does not promise that between
    numbers of rows, nor do a decode and a prefill of the same position agree to the bit: a text that is resumed may
    leave its path where two tokens all but tie.
    """

    def __init__(self, shape: ModelShape, weights: Weights, blocks: int, block_size: int, slots: int) -> None:
        """Takes seconds: kernels are compiled and graphs captured. To be asked after `check_cuda`."""
        self._decoder = Decoder(shape, weights)
        self._device = weights.embedding.device
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # Triton launches on the current one
        self._packer = StepPacker()
        self._kv = allocate_kv(shape, blocks, block_size, weights.embedding.dtype, self._device)
        buckets = [1 << power for power in range((slots - 1).bit_length() + 1)]
        longest_table = -(-shape.context_length // block_size)
        length = StepShape.decoding(buckets[-1]).header + buckets[-1] * longest_table
        self._step_buffer = torch.zeros(
            length, dtype=torch.int32, device=self._device
        )  # every graph reads its step here
        self._graph_pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        # The largest first: the others find room in its memory.
        self._graphs = {rows: self._capture(StepShape.decoding(rows)) for rows in reversed(buckets)}
        self._compile_prefill()

    def forward(self, plan: StepPlan) -> Tensor:
        """Satisfies `Runner`. The next call overwrites the logits."""
        shape = StepShape.of(plan)
        if shape.prefills:
            run = self._stage(self._packer.pack(plan, shape)).to(self._device, non_blocking=True)
            return self._decoder.forward(unpack(run, shape), self._kv)
        bucket = StepShape.decoding(1 << (shape.rows - 1).bit_length())
        staged = self._stage(self._packer.pack(plan, bucket))
        self._step_buffer[: len(staged)].copy_(staged, non_blocking=True)
        return self._graphs[bucket.rows]()[: shape.rows]

    def _stage(self, packed: "array[int]") -> Tensor:
        """In memory that the GPU copies from by itself; torch does not give it away again before it has."""
        run = torch.frombuffer(packed, dtype=torch.int32)
        return run.pin_memory() if self._device.type == "cuda" else run

    def _capture(self, shape: StepShape) -> Callable[[], Tensor]:
        """What computes the step of this shape that lies in `_run`. Without a GPU, kernel by kernel."""
        step = unpack(self._step_buffer, shape)
        if self._device.type != "cuda":
            return lambda: self._decoder.forward(step, self._kv)
        self._decoder.forward(step, self._kv)  # compiles, and has cuBLAS allocate what it may not while capturing
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            logits = self._decoder.forward(step, self._kv)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    def _compile_prefill(self) -> None:
        """By a step of one token, into the first block: nobody's yet."""
        sequence = Sequence(SequenceSpec(seq_id=0, token_ids=[0], max_output_tokens=1), frozenset())
        sequence.table = [0]
        self.forward(StepPlan([], [Slice(sequence, 0, 1)], StepResult(0)))
