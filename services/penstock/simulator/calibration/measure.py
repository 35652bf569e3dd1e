"""Measures an engine at all calibration points in rounds, so that a busy machine affects all points alike."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from penstock.simulator.calibration.result import (
    BLOCK_SIZE,
    TOKEN_BUDGET,
    CalibrationPoint,
    cached_lengths,
    kv_blocks_for,
    points_for,
)
from penstock.simulator.calibration.timed_engine import (
    MIN_UNDISTURBED_STEPS,
    StepTiming,
    TimedEngine,
    undisturbed_steps,
)
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders import load_card
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch.build import build_torch_engine

SLOTS = 40  # above the decodes of every point
DECODE_STEPS = 6  # steps of a decode point in one round
CHUNK_STEPS = 2  # steps of a point with a prefill chunk in one round
FILLER_TOKENS = 512
EXTRA_ROUNDS_FACTOR = 2  # extra rounds for disturbed points, as a multiple of the requested rounds

TimingsByPoint = dict[CalibrationPoint, list[StepTiming]]
ProgressFn = Callable[[str], None]


def open_calibration(model: str, threads: int) -> "CalibrationRun":
    """Load the model, with a block pool that holds the cached contexts of all points."""
    points = points_for(load_card(model).context_length, SLOTS)
    options = EngineOptions(
        model=model,
        threads=threads,
        slots=SLOTS,
        token_budget=TOKEN_BUDGET,
        block_size=BLOCK_SIZE,
        kv_blocks=kv_blocks_for(points),
    )
    engine, card = build_torch_engine(options)
    return CalibrationRun(TimedEngine(engine), card.plain_ids(), points)


def measure_points(run: "CalibrationRun", rounds: int, report_progress: ProgressFn) -> TimingsByPoint:
    """Measure all points for `rounds` rounds, then only those that other processes disturbed."""
    run.warm_up(report_progress)
    timings: TimingsByPoint = {}
    for number in range((1 + EXTRA_ROUNDS_FACTOR) * rounds):
        points = run.points if number < rounds else disturbed_points(timings)
        if not points:
            break
        label = f"round {number + 1} of {rounds}"
        run.run_round(timings, points, partial(_report_round, report_progress, label))
    return timings


def _report_round(report_progress: ProgressFn, label: str, line: str) -> None:
    report_progress(f"{label}, {line}")


def disturbed_points(timings_by_point: TimingsByPoint) -> list[CalibrationPoint]:
    return [
        point for point, timings in timings_by_point.items() if len(undisturbed_steps(timings)) < MIN_UNDISTURBED_STEPS
    ]


class CalibrationRun:
    """An engine whose prefix cache holds the contexts of all points."""

    def __init__(
        self, timed_engine: TimedEngine, token_ids: range, points: Sequence[CalibrationPoint], seed: int = 0
    ) -> None:
        self.points = points
        self._timed_engine = timed_engine
        self._engine = timed_engine.engine
        self._rng = random.Random(seed)
        self._token_ids = token_ids
        self._last_seq_id = 0
        self._texts = [self._random_tokens(length) for length in cached_lengths(points)]

    def warm_up(self, report_progress: ProgressFn) -> None:
        """Prefill the contexts of all points into the prefix cache, and touch the remaining KV memory."""
        for place, text in enumerate(self._texts):
            report_progress(f"prefilling {place + 1} of {len(self._texts)} contexts: {len(text)} tokens")
            self._add(place, len(text), 1, 1)
            self._timed_engine.run_to_end()
        report_progress("touching the rest of the KV memory, which the kernel allocates at the first write")
        capacity, filler = self._engine.capacity(), min(FILLER_TOKENS, self._engine.batch.context_length - 1)
        for _ in range((capacity.blocks_free - capacity.blocks_cached) // (1 + filler // BLOCK_SIZE)):
            self._add(0, 0, filler, 1)
        self._timed_engine.run_to_end()

    def run_round(
        self, timings_by_point: TimingsByPoint, points: Sequence[CalibrationPoint], report_progress: ProgressFn
    ) -> None:
        """Measure each point once, in random order."""
        for number, point in enumerate(self._rng.sample(points, len(points))):
            report_progress(f"point {number + 1} of {len(points)}, {point}")
            timings_by_point.setdefault(point, []).extend(self._measure_point(point))

    def _measure_point(self, point: CalibrationPoint) -> list[StepTiming]:
        decoding = [self._add(place, point.context, 1, 2 + DECODE_STEPS) for place in range(point.seqs)]
        while decoding and self._engine.step().decode_seqs < point.seqs:
            pass
        timings = []
        for _ in range(CHUNK_STEPS if point.chunk else DECODE_STEPS - 1):
            if point.chunk:
                self._add(0, point.start, point.chunk, 1)
            timings.append(self._timed_engine.step()[1])
        for seq_id in decoding:
            self._engine.cancel(seq_id)
        self._timed_engine.run_to_end()
        return [
            each for each in timings if (each.work.decode_seqs, each.work.prefill_tokens) == (point.seqs, point.chunk)
        ]

    def _add(self, place: int, cached_tokens: int, new_tokens: int, output: int) -> int:
        """Add a sequence with a cached prefix and new random tokens after it."""
        self._last_seq_id += 1
        spec = SequenceSpec(
            seq_id=self._last_seq_id,
            token_ids=self._texts[place][:cached_tokens] + self._random_tokens(new_tokens),
            max_output_tokens=output,
            ignore_eos=True,
            cache_salt=b"text %d" % place,
        )
        self._engine.add(spec)
        return spec.seq_id

    def _random_tokens(self, count: int) -> list[int]:
        return self._rng.choices(self._token_ids, k=count)
