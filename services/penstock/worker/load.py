"""How full the worker is, and whether that is news to its scheduler. Pure."""

from dataclasses import dataclass

from penstock.worker.engine.interface import Capacity
from penstock.worker.pace import Pace

NEWS = 0.1  # relative change of a smoothed figure; all others are news at any change
STEPS = 4  # that are news even where nothing else has changed: by them a scheduler knows how far its leases are


@dataclass(frozen=True, slots=True)
class Load:
    running: int  # sequences, waiting ones among them
    free_blocks: int  # neither used nor promised
    prefill_backlog_tokens: int
    step_time: float | None  # s, smoothed
    tokens_per_second: float
    prefill_tokens_per_second: float = 0.0
    steps: int = 0
    decode_step_time: float | None = None  # s, of a step that prefills nothing
    prefill_token_time: float = 0.0  # s by which a prompt token makes a step longer
    step_tokens: int = 0  # most that any step has had

    def is_news_after(self, told: "Load | None") -> bool:
        if told is None or self.counts != told.counts or self.steps >= told.steps + STEPS:
            return True
        return (
            moved(self.step_time or 0.0, told.step_time or 0.0)
            or moved(self.tokens_per_second, told.tokens_per_second)
            or moved(self.prefill_tokens_per_second, told.prefill_tokens_per_second)
        )

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.running, self.free_blocks, self.prefill_backlog_tokens


def load_of(capacity: Capacity, pace: Pace) -> Load:
    return Load(
        running=capacity.running + capacity.waiting,
        # Promises may exceed what is free: the batch preempts when they all come due.
        free_blocks=max(0, capacity.blocks_free - capacity.blocks_promised),
        prefill_backlog_tokens=capacity.prefill_backlog_tokens,
        step_time=pace.step_time,
        tokens_per_second=pace.tokens_per_second,
        prefill_tokens_per_second=pace.prefill_tokens_per_second,
        steps=pace.steps,
        decode_step_time=pace.decode_step_time,
        prefill_token_time=pace.prefill_token_time,
        step_tokens=pace.most_tokens,
    )


def moved(value: float, before: float) -> bool:
    return value - before > NEWS * value if value > before else before - value > NEWS * before
