"""Takes an engine through the points, round after round, so that a busy minute of the machine hits all alike."""

import random
from collections.abc import Callable, Sequence

from penstock.simulator.calibration.points import BLOCK_SIZE, BUDGET, Point, blocks_for, lengths_for, points_within
from penstock.simulator.calibration.timed_engine import FEWEST, Turn, WatchedEngine, calm
from penstock.worker.engine.build_torch import build_torch_engine
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders import load_card
from penstock.worker.engine.options import EngineOptions

SLOTS = 40  # above the largest crowd
DECODE_STEPS = 6  # measured of a crowd in a round
CHUNK_STEPS = 2
FILLER = 512  # tokens
EXTRA = 2  # as many rounds more for points that neighbours disturbed, as were asked for

Turns = dict[Point, list[Turn]]
Say = Callable[[str], None]


def open_rounds(model: str, threads: int) -> "Rounds":
    """Load the model, with a pool that holds what every point within its context reads."""
    points = points_within(load_card(model).context_length, SLOTS)
    options = EngineOptions(
        model=model,
        threads=threads,
        slots=SLOTS,
        token_budget=BUDGET,
        block_size=BLOCK_SIZE,
        kv_blocks=blocks_for(points),
    )
    engine, card = build_torch_engine(options)
    return Rounds(WatchedEngine(engine), card.plain_ids(), points)


def measure(rounds: "Rounds", count: int, say: Say) -> Turns:
    """Take `count` rounds over all points, then go on with those alone that neighbours disturbed."""
    rounds.warm(say)
    turns: Turns = {}
    for number in range((1 + EXTRA) * count):
        points = rounds.points if number < count else disturbed(turns)
        if not points:
            break
        rounds.round(turns, points, lambda line, number=number + 1: say(f"round {number} of {count}, {line}"))  # type: ignore[misc]  # a lambda has no types
    return turns


def disturbed(turns: Turns) -> list[Point]:
    return [point for point, found in turns.items() if len(calm(found)) < FEWEST]


class Rounds:
    """An engine with what all points need in its prefix cache."""

    def __init__(self, watched: WatchedEngine, ids: range, points: Sequence[Point], seed: int = 0) -> None:
        self.points = points
        self._watched = watched
        self._engine = watched.engine
        self._rng = random.Random(seed)  # nothing is guarded by it
        self._ids = ids
        self._last_id = 0
        self._texts = [self._draw(length) for length in lengths_for(points)]

    def warm(self, say: Say) -> None:
        """Prefill what the points read, so that each finds it cached."""
        for place, text in enumerate(self._texts):
            say(f"prefilling {place + 1} of {len(self._texts)} contexts: {len(text)} tokens")
            self._add(place, len(text), 1, 1)
            self._watched.finish()
        say("touching the rest of the KV memory, which the system gives as it is first written")
        capacity, filler = self._engine.capacity(), min(FILLER, self._engine.batch.context_length - 1)
        for _ in range((capacity.blocks_free - capacity.blocks_cached) // (1 + filler // BLOCK_SIZE)):
            self._add(0, 0, filler, 1)
        self._watched.finish()

    def round(self, turns: Turns, points: Sequence[Point], say: Say) -> None:
        """Measure each of the points once more, in an order of its own."""
        for number, point in enumerate(self._rng.sample(points, len(points))):
            say(f"point {number + 1} of {len(points)}, {point}")
            turns.setdefault(point, []).extend(self._measure(point))

    def _measure(self, point: Point) -> list[Turn]:
        crowd = [self._add(place, point.context, 1, 2 + DECODE_STEPS) for place in range(point.seqs)]
        while crowd and self._engine.step().decode_seqs < point.seqs:
            pass
        found = []
        for _ in range(CHUNK_STEPS if point.chunk else DECODE_STEPS - 1):
            if point.chunk:
                self._add(0, point.start, point.chunk, 1)
            found.append(self._watched.step()[1])
        for seq_id in crowd:
            self._engine.cancel(seq_id)
        self._watched.finish()
        return [
            turn for turn in found if (turn.work.decode_seqs, turn.work.prefill_tokens) == (point.seqs, point.chunk)
        ]

    def _add(self, place: int, cached: int, fresh: int, output: int) -> int:
        """Add a sequence that begins as a text does and goes on as none before it."""
        self._last_id += 1
        spec = SequenceSpec(
            seq_id=self._last_id,
            token_ids=self._texts[place][:cached] + self._draw(fresh),
            max_output_tokens=output,
            ignore_eos=True,
            cache_salt=b"text %d" % place,
        )
        self._engine.add(spec)
        return spec.seq_id

    def _draw(self, count: int) -> list[int]:
        return self._rng.choices(self._ids, k=count)
