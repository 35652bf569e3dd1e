"""Computes a step's plan on a GPU. Owns the KV cache and the graphs of decode steps."""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda.decoder import Decoder
from penstock.worker.engine.cuda.step import StepPacker, StepShape, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.torch.kv_cache import allocate_kv
from penstock.worker.engine.torch.weights import ModelShape, Weights


class CudaRunner:
    """Steps with decodes alone replay a graph, padded to a power of two rows; steps with prefills launch kernels.

    `forward` never waits for the GPU; the only wait of a step is for the sampled ids. A prefill chunk that samples no
    token is therefore still computed while the next step is planned, packed and launched.

    Attention gives a row the same bits in any batch and any chunks of its prefill. cuBLAS does not guarantee this
    across numbers of rows, and a decode and a prefill of the same position differ in rounding. A resumed text may
    therefore diverge where two tokens are nearly equal.
    """

    def __init__(self, shape: ModelShape, weights: Weights, blocks: int, block_size: int, slots: int) -> None:
        """Compile kernels and capture graphs, which takes seconds. Call `check_cuda` first."""
        self._decoder = Decoder(shape, weights)
        self._device = weights.embedding.device
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # Triton launches on the current one
        self._packer = StepPacker()
        self._kv = allocate_kv(shape, blocks, block_size, weights.embedding.dtype, self._device)
        buckets = [1 << power for power in range((slots - 1).bit_length() + 1)]
        longest_table = -(-shape.context_length // block_size)
        length = StepShape.decoding(buckets[-1]).header + buckets[-1] * longest_table
        # All graphs read their step from this buffer.
        self._step_buffer = torch.zeros(length, dtype=torch.int32, device=self._device)
        self._graph_pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        # The largest graph first, so that the others reuse its memory.
        self._graphs = {rows: self._capture(StepShape.decoding(rows)) for rows in reversed(buckets)}
        self._compile_prefill()

    def forward(self, plan: StepPlan) -> Tensor:
        """Satisfies `Runner`. The next call overwrites the logits."""
        shape = StepShape.of(plan)
        if shape.prefills:
            buffer = self._stage(self._packer.pack(plan, shape)).to(self._device, non_blocking=True)
            return self._decoder.forward(unpack(buffer, shape), self._kv)
        bucket = StepShape.decoding(1 << (shape.rows - 1).bit_length())
        staged = self._stage(self._packer.pack(plan, bucket))
        self._step_buffer[: len(staged)].copy_(staged, non_blocking=True)
        return self._graphs[bucket.rows]()[: shape.rows]

    def _stage(self, packed: "array[int]") -> Tensor:
        """Return the packed step in pinned memory, which the GPU copies from by itself; torch keeps it until then."""
        buffer = torch.frombuffer(packed, dtype=torch.int32)
        return buffer.pin_memory() if self._device.type == "cuda" else buffer

    def _capture(self, shape: StepShape) -> Callable[[], Tensor]:
        """Return a function that computes the step in `_step_buffer`: a graph, or on a CPU a launch of each kernel."""
        step = unpack(self._step_buffer, shape)
        if self._device.type != "cuda":
            return lambda: self._decoder.forward(step, self._kv)
        self._decoder.forward(step, self._kv)  # compiles, and lets cuBLAS allocate, which it cannot during a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            logits = self._decoder.forward(step, self._kv)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    def _compile_prefill(self) -> None:
        """Compile the kernels of a prefill by a step of one token, into the first block, which is not in use yet."""
        sequence = Sequence(SequenceSpec(seq_id=0, token_ids=[0], max_output_tokens=1), frozenset())
        sequence.table = [0]
        self.forward(StepPlan([], [Slice(sequence, 0, 1)], StepResult(0)))
