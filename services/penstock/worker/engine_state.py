"""What the engine told last: its card, how full it is (nothing while there is no engine), how fast it is."""

from dataclasses import dataclass, field

from penstock.mesh.v1 import worker_pb2 as pb
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.interface import Capacity, StepResult
from penstock.worker.frames import card_message
from penstock.worker.limits import Limits
from penstock.worker.load import Load, load_of
from penstock.worker.pace import Pace


@dataclass(slots=True)
class EngineState:
    card: pb.ModelCard | None = None
    capacity: Capacity | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def limits(self) -> Limits:
        assert self.card, "asked before the engine was ready"
        assert self.capacity
        return Limits(
            context_length=self.card.context_length,
            vocabulary=self.card.vocabulary_size,
            blocks=self.capacity.blocks,
            block_size=self.capacity.block_size,
        )

    @property
    def load(self) -> Load:
        assert self.capacity, "asked before the engine was ready"
        return load_of(self.capacity, self.pace)

    def note_ready(self, card: ModelCard, capacity: Capacity) -> None:
        self.card, self.capacity = card_message(card, capacity.block_size), capacity

    def note_step(self, result: StepResult, capacity: Capacity, took: float) -> None:
        self.capacity = capacity
        self.pace.note(result, took)

    def note_lost(self) -> None:
        """Keep card and pace: the next engine has the same model on the same machine."""
        self.capacity = None

    def figures(self) -> dict[str, float]:
        now = self.capacity
        return {
            "kv_blocks": now.blocks if now else 0,
            "kv_blocks_used": now.blocks - now.blocks_free if now else 0,
            "kv_blocks_cached": now.blocks_cached if now else 0,
            "slots": now.slots if now else 0,
            "running": now.running if now else 0,
            "waiting": now.waiting if now else 0,
            "prefill_backlog_tokens": now.prefill_backlog_tokens if now else 0,
            "step_seconds": self.pace.step_time or 0.0,
            "tokens_per_second": self.pace.tokens_per_second,
        }
