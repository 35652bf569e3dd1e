"""How a driver is spoken to: one JSON object a line on its standard input, one back for each.

The first line is the `Setup`, answered once the model is loaded; every further one is a cell. The standard output is
kept for answers: whatever the engine prints goes to standard error, which the parent keeps as a log.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine_bench.cells import BenchCell, CellTrace

MAX_STEP_TOKENS = (
    2_048  # of one step, for every engine that lets it be said: otherwise their defaults would be compared
)


@dataclass(frozen=True, slots=True)
class DriverSetup:
    model: str  # folder of the checkpoint
    dtype: str  # bfloat16 or float32
    threads: int
    max_concurrency: int  # most sequences at once in any cell
    max_context: int  # most tokens of a sequence in any cell

    @property
    def vocab_size(self) -> int:
        config = json.loads((Path(self.model) / "config.json").read_text(encoding="utf-8"))
        return int(config["vocab_size"])


class Stopwatch:
    """Times of tokens since it was made, and CPU time of the process."""

    def __init__(self, sequences: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(sequences)]
        self.times: list[list[float]] = [[] for _ in range(sequences)]
        self._cpu = time.process_time()
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def record(self, sequence: int, token: int, at: float) -> None:
        self.tokens[sequence].append(token)
        self.times[sequence].append(at)

    def trace(self) -> CellTrace:
        return CellTrace(self.times, time.process_time() - self._cpu, [tokens[0] for tokens in self.tokens])


@dataclass(frozen=True, slots=True)
class MachineCeilings:
    """What the machine can do at most for a decode step, measured between the engines' turns."""

    bytes_per_s: float  # read from as much memory as a step reads
    flops_per_s: float  # of a large product of matrices in the dtype


RunFn = Callable[[BenchCell], CellTrace | MachineCeilings]


def serve(load: Callable[[DriverSetup], RunFn]) -> None:
    """Answer lines until there are no more, and end the process: an engine's threads may outlive their use.

    A failure is answered as {"error": why}.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        run = load(DriverSetup(**json.loads(sys.stdin.readline())))
        answer({"ready": True})
        for line in sys.stdin:
            answer(asdict(run(BenchCell(**json.loads(line)))))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells of it
        answer({"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
