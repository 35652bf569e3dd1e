"""The load report: how full and how fast the worker is, and whether a report is due. Pure."""

from dataclasses import dataclass

from penstock.worker.engine.interface import Capacity
from penstock.worker.scheduler_session.throughput import EngineThroughput

MIN_REPORTED_CHANGE_SHARE = 0.1  # relative change of a smoothed figure; other figures are reported at any change
# Steps after which a report is due without a change. Progress and ends of leases carry the present number of steps.
MAX_STEPS_BETWEEN_REPORTS = 16


@dataclass(frozen=True, slots=True)
class LoadReport:
    running: int  # sequences, including waiting ones
    free_kv_blocks: int  # neither used nor promised
    prefill_backlog_tokens: int
    step_time: float | None  # s, smoothed
    tokens_per_second: float
    prefill_tokens_per_second: float = 0.0
    steps: int = 0
    decode_step_time: float | None = None  # s, of a step without prefills
    prefill_token_time: float = 0.0  # s that a prompt token adds to a step
    step_tokens: int = 0  # maximum number of tokens of any step

    def differs_from(self, last: "LoadReport | None") -> bool:
        if last is None or self.counts != last.counts or self.steps >= last.steps + MAX_STEPS_BETWEEN_REPORTS:
            return True
        return (
            has_changed(self.step_time or 0.0, last.step_time or 0.0)
            or has_changed(self.tokens_per_second, last.tokens_per_second)
            or has_changed(self.prefill_tokens_per_second, last.prefill_tokens_per_second)
        )

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.running, self.free_kv_blocks, self.prefill_backlog_tokens


def load_report_of(capacity: Capacity, throughput: EngineThroughput, sent_tokens: int = 0) -> LoadReport:
    """`sent_tokens`: prompt tokens that are on their way to the engine and not in its capacity yet."""
    return LoadReport(
        running=capacity.running + capacity.waiting,
        # Promised blocks may exceed the free ones; the batch preempts if all are needed.
        free_kv_blocks=max(0, capacity.blocks_free - capacity.blocks_promised),
        prefill_backlog_tokens=capacity.prefill_backlog_tokens + sent_tokens,
        step_time=throughput.step_time,
        tokens_per_second=throughput.tokens_per_second,
        prefill_tokens_per_second=throughput.prefill_tokens_per_second,
        steps=throughput.steps,
        decode_step_time=throughput.decode_step_time,
        prefill_token_time=throughput.prefill_token_time,
        step_tokens=throughput.max_step_tokens,
    )


def has_changed(value: float, before: float) -> bool:
    return (
        value - before > MIN_REPORTED_CHANGE_SHARE * value
        if value > before
        else before - value > MIN_REPORTED_CHANGE_SHARE * before
    )
