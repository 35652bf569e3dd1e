"""The protocol of a driver process: one JSON object per line on its standard input, one answer for each.

The first line is the `DriverSetup`, which is answered when the model is loaded; every further line is a cell. The
output of the engine itself goes to standard error, which the parent writes to a log.
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

# Of one step, for every engine with such a setting, so that the comparison is not one of defaults.
MAX_STEP_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class DriverSetup:
    model: str  # folder of the checkpoint
    dtype: str  # bfloat16 or float32
    threads: int
    max_concurrency: int  # of any cell
    max_context: int  # tokens of a sequence in any cell

    @property
    def vocab_size(self) -> int:
        config = json.loads((Path(self.model) / "config.json").read_text(encoding="utf-8"))
        return int(config["vocab_size"])


class Stopwatch:
    """Records the times of tokens and the CPU time of the process, from its creation on."""

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
    """The limits of the machine for a decode step, measured in every round."""

    bytes_per_s: float  # over as many bytes as a step reads
    flops_per_s: float  # of a product of large matrices in the dtype


RunFn = Callable[[BenchCell], CellTrace | MachineCeilings]


def serve(load: Callable[[DriverSetup], RunFn]) -> None:
    """Answer every line of standard input, then end the process, because threads of the engine may still run.

    A failure is answered as {"error": reason}.
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
    except Exception as error:  # noqa: BLE001 - the parent reports it
        answer({"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
