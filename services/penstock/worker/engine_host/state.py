"""The last reported state of the engine: its model card, its capacity (None without an engine) and its throughput."""

from dataclasses import dataclass, field, replace

from penstock.mesh.model_key import model_key
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.worker.engine.interface import Capacity, StepResult
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.frames import card_message
from penstock.worker.runs.limits import RunLimits
from penstock.worker.scheduler_session.load_report import LoadReport, load_report_of
from penstock.worker.scheduler_session.throughput import EngineThroughput


@dataclass(slots=True)
class EngineState:
    served_name: str = ""  # of the model toward schedulers and edges; empty: the card's own
    card: pb.ModelCard | None = None
    capacity: Capacity | None = None
    throughput: EngineThroughput = field(default_factory=EngineThroughput)
    # Send time and tokens, by sequence, of prompts that the engine has not reported. It accepts prompts between steps;
    # until then a scheduler would place others here as if there were none.
    _sent: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def limits(self) -> RunLimits:
        assert self.card, "asked before the engine was ready"
        assert self.capacity
        return RunLimits(
            context_length=self.card.context_length,
            vocab_size=self.card.vocabulary_size,
            blocks=self.capacity.blocks,
            block_size=self.capacity.block_size,
            model=self.model,
            embeds=self.card.embedding_size > 0,
            enforces_forms=self.card.enforces_forms,
        )

    @property
    def model(self) -> str:
        """Key of the model; empty before the first engine was ready."""
        return model_key(self.card.name, self.card.digest) if self.card else ""

    @property
    def load(self) -> LoadReport:
        assert self.capacity, "asked before the engine was ready"
        return load_report_of(self.capacity, self.throughput, sum([tokens for _, tokens in self._sent.values()]))

    def on_ready(self, card: ModelCard, capacity: Capacity) -> None:
        named = replace(card, name=self.served_name) if self.served_name else card
        self.card, self.capacity = card_message(named, capacity.block_size), capacity

    def on_sent(self, seq_id: int, tokens: int, now: float) -> None:
        """Count a prompt that is on its way to the engine."""
        self._sent[seq_id] = now, tokens

    def on_add_rejected(self, seq_id: int) -> None:
        self._sent.pop(seq_id, None)

    def on_step(self, result: StepResult, capacity: Capacity, duration_s: float, ended_at: float) -> None:
        """`ended_at`: s of the worker's clock. The capacity counts all prompts that were sent before the step began."""
        self.capacity, began_at = capacity, ended_at - duration_s
        while self._sent and self._sent[oldest := next(iter(self._sent))][0] < began_at:
            del self._sent[oldest]
        self.throughput.record(result, duration_s)

    def on_lost(self) -> None:
        """Keep card and throughput, because the next engine usually runs the same model on the same machine."""
        self.capacity = None
        self._sent.clear()

    def figures(self) -> dict[str, float]:
        capacity = self.capacity
        return {
            "kv_blocks": capacity.blocks if capacity else 0,
            "kv_blocks_used": capacity.blocks - capacity.blocks_free if capacity else 0,
            "kv_blocks_cached": capacity.blocks_cached if capacity else 0,
            "slots": capacity.slots if capacity else 0,
            "running": capacity.running if capacity else 0,
            "waiting": capacity.waiting if capacity else 0,
            "prefill_backlog_tokens": capacity.prefill_backlog_tokens if capacity else 0,
            "step_seconds": self.throughput.step_time or 0.0,
            "busy_seconds": self.throughput.busy_s,
            "tokens_per_second": self.throughput.tokens_per_second,
        }
