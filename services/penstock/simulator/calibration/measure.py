"""Takes an engine through the points, round after round, so that a busy minute of the machine hits all alike."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from penstock.simulator.calibration.points import (
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

SLOTS = 40  # above the largest crowd
DECODE_STEPS = 6  # measured of a crowd in a round
CHUNK_STEPS = 2
FILLER_TOKENS = 512  # tokens
EXTRA_ROUNDS_FACTOR = 2  # as many rounds more for points that neighbours disturbed, as were asked for

TimingsByPoint = dict[CalibrationPoint, list[StepTiming]]
ProgressFn = Callable[[str], None]


def open_calibration(model: str, threads: int) -> "CalibrationRun":
    """Load the model, with a pool that holds what every point within its context reads."""
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
    """Take `count` rounds over all points, then go on with those alone that neighbours disturbed."""
    run.warm_up(report_progress)
    turns: TimingsByPoint = {}
    for number in range((1 + EXTRA_ROUNDS_FACTOR) * rounds):
        points = run.points if number < rounds else disturbed_points(turns)
        if not points:
            break
        label = f"round {number + 1} of {rounds}"
        run.run_round(turns, points, partial(_report_round, report_progress, label))
    return turns


def _report_round(report_progress: ProgressFn, label: str, line: str) -> None:
    report_progress(f"{label}, {line}")


def disturbed_points(timings_by_point: TimingsByPoint) -> list[CalibrationPoint]:
    return [point for point, found in timings_by_point.items() if len(undisturbed_steps(found)) < MIN_UNDISTURBED_STEPS]


class CalibrationRun:
    """An engine with what all points need in its prefix cache."""

    def __init__(self, watched: TimedEngine, ids: range, points: Sequence[CalibrationPoint], seed: int = 0) -> None:
        self.points = points
        self._timed_engine = watched
        self._engine = watched.engine
        self._rng = random.Random(seed)  # nothing is guarded by it
        self._token_ids = ids
        self._last_seq_id = 0
        self._texts = [self._random_tokens(length) for length in cached_lengths(points)]

    def warm_up(self, report_progress: ProgressFn) -> None:
        """Prefill what the points read, so that each finds it cached."""
        for place, text in enumerate(self._texts):
            report_progress(f"prefilling {place + 1} of {len(self._texts)} contexts: {len(text)} tokens")
            self._add(place, len(text), 1, 1)
            self._timed_engine.run_to_end()
        report_progress("touching the rest of the KV memory, which the system gives as it is first written")
        capacity, filler = self._engine.capacity(), min(FILLER_TOKENS, self._engine.batch.context_length - 1)
        for _ in range((capacity.blocks_free - capacity.blocks_cached) // (1 + filler // BLOCK_SIZE)):
            self._add(0, 0, filler, 1)
        self._timed_engine.run_to_end()

    def run_round(
        self, timings_by_point: TimingsByPoint, points: Sequence[CalibrationPoint], report_progress: ProgressFn
    ) -> None:
        """Measure each of the points once more, in an order of its own."""
        for number, point in enumerate(self._rng.sample(points, len(points))):
            report_progress(f"point {number + 1} of {len(points)}, {point}")
            timings_by_point.setdefault(point, []).extend(self._measure_point(point))

    def _measure_point(self, point: CalibrationPoint) -> list[StepTiming]:
        crowd = [self._add(place, point.context, 1, 2 + DECODE_STEPS) for place in range(point.seqs)]
        while crowd and self._engine.step().decode_seqs < point.seqs:
            pass
        found = []
        for _ in range(CHUNK_STEPS if point.chunk else DECODE_STEPS - 1):
            if point.chunk:
                self._add(0, point.start, point.chunk, 1)
            found.append(self._timed_engine.step()[1])
        for seq_id in crowd:
            self._engine.cancel(seq_id)
        self._timed_engine.run_to_end()
        return [
            turn for turn in found if (turn.work.decode_seqs, turn.work.prefill_tokens) == (point.seqs, point.chunk)
        ]

    def _add(self, place: int, cached_tokens: int, new_tokens: int, output: int) -> int:
        """Add a sequence that begins as a text does and goes on as none before it."""
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
