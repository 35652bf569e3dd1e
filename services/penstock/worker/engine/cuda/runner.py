"""Computes a step's plan on a GPU. Owns the KV cache and the graphs of steps."""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda.buckets import MAX_MIXED_ROWS, bucket_for, decode_buckets, mixed_buckets
from penstock.worker.engine.cuda.decoder import Decoder
from penstock.worker.engine.cuda.step import PackedStep, StepPacker, StepShape, StepTensors, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.torch.kv_cache import allocate_kv
from penstock.worker.engine.torch.weights import ModelShape, Weights

Compute = Callable[[StepTensors], Tensor]


class CudaRunner:
    """Steps of up to `max_mixed_rows` rows replay a graph, padded to a bucket of rows; larger ones launch kernels.

    The graph of a step of decodes includes the logits. The graph of a step with prefills ends before them, because few
    of its rows are sampled.

    `forward` never waits for the GPU; the only wait of a step is for the sampled ids. A prefill chunk that samples no
    token is therefore still computed while the next step is planned, packed and launched.

    Attention gives a row the same bits in any batch and any chunks of its prefill. cuBLAS does not guarantee this
    across numbers of rows, and a decode and a prefill of the same position differ in rounding. A resumed text may
    therefore diverge where two tokens are nearly equal.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        blocks: int,
        block_size: int,
        slots: int,
        *,
        max_mixed_rows: int = MAX_MIXED_ROWS,
    ) -> None:
        """Compile kernels and capture graphs, which takes seconds. Call `check_cuda` first."""
        self._slots = slots
        self._decoder = Decoder(shape, weights, slots)
        self._device = weights.embedding.device
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # Triton launches on the current one
        self._kv = allocate_kv(shape, blocks, block_size, weights.embedding.dtype, self._device)
        self._packer = StepPacker(slots, -(-shape.context_length // block_size))
        self._tables = self._zeros(slots * self._packer.table_length)
        self._decode_buckets, self._mixed_buckets = decode_buckets(slots), mixed_buckets(max_mixed_rows)
        decodes = [StepShape.decoding(rows) for rows in self._decode_buckets]
        mixed = [StepShape.mixed(rows, slots) for rows in self._mixed_buckets]
        # All graphs read their step from this buffer.
        self._step_buffer = self._zeros(max(each.length for each in (*decodes, *mixed)))
        self._graph_pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        # The largest graph first, so that the others reuse its memory.
        self._mixed_graphs = {each.rows: self._capture(each, self._hidden) for each in reversed(mixed)}
        self._decode_graphs = {each.rows: self._capture(each, self._logits) for each in reversed(decodes)}
        self._compile_prefill()

    def forward(self, plan: StepPlan) -> Tensor:
        """Satisfies `Runner`. The next call overwrites the logits."""
        shape = StepShape.of(plan)
        if not shape.prefills:
            bucket = bucket_for(self._decode_buckets, shape.rows)
            assert bucket is not None, f"{shape.rows} sequences decode in {self._slots} slots"
            self._send(self._packer.pack(plan, StepShape.decoding(bucket)))
            return self._decode_graphs[bucket]()[: shape.rows]
        bucket = bucket_for(self._mixed_buckets, shape.rows)
        if bucket is None:
            return self._launch(plan, shape)
        room = StepShape.mixed(bucket, self._slots)
        self._send(self._packer.pack(plan, room))
        sampled_rows = unpack(self._step_buffer, room, self._tables).sampled_rows[: shape.sampled]
        return self._decoder.logits(self._mixed_graphs[bucket](), sampled_rows)

    def _launch(self, plan: StepPlan, shape: StepShape) -> Tensor:
        packed = self._packer.pack(plan, shape)
        self._write_tables(packed)
        return self._logits(unpack(self._to_device(packed.header), shape, self._tables))

    def _logits(self, step: StepTensors) -> Tensor:
        return self._decoder.logits(self._hidden(step), step.sampled_rows)

    def _hidden(self, step: StepTensors) -> Tensor:
        return self._decoder.hidden(step, self._kv)

    def _send(self, packed: PackedStep) -> None:
        """Copy a step to the buffer that graphs read, and the changes of its block tables."""
        self._write_tables(packed)
        self._step_buffer[: len(packed.header)].copy_(self._stage(packed.header), non_blocking=True)

    def _write_tables(self, packed: PackedStep) -> None:
        if packed.changed_places:
            changes = self._to_device(packed.changed_places + packed.changed_blocks).view(2, -1)
            self._tables.index_copy_(0, changes[0].long(), changes[1])

    def _to_device(self, packed: "array[int]") -> Tensor:
        return self._stage(packed).to(self._device, non_blocking=True)

    def _stage(self, packed: "array[int]") -> Tensor:
        """Return the values in pinned memory, which the GPU copies from by itself; torch keeps it until then."""
        buffer = torch.frombuffer(packed, dtype=torch.int32)
        return buffer.pin_memory() if self._device.type == "cuda" else buffer

    def _zeros(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self._device)

    def _capture(self, shape: StepShape, compute: Compute) -> Callable[[], Tensor]:
        """Return a function that computes the step in `_step_buffer`: a graph, or on a CPU a launch of each kernel."""
        step = unpack(self._step_buffer, shape, self._tables)
        if self._device.type != "cuda":
            return lambda: compute(step)
        compute(step)  # compiles, and lets cuBLAS allocate, which it cannot during a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            result = compute(step)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def _compile_prefill(self) -> None:
        """Compute a step of one token, into the first block, which is not in use yet, as larger steps do."""
        sequence = Sequence(SequenceSpec(seq_id=0, token_ids=[0], max_output_tokens=1), frozenset())
        sequence.table = [0]
        plan = StepPlan([], [Slice(sequence, 0, 1)], StepResult(0))
        self._launch(plan, StepShape.of(plan))
