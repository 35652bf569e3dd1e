"""Profiles a decode step of our engine: a table of tensor kernels, and the share of time outside them.

Run as a process: FOLDER DTYPE BATCH THREADS.
"""

import ctypes
import sys
import time
from collections.abc import Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from engine_bench.cells import BenchCell
from engine_bench.drivers.ours import build_engine_for
from engine_bench.drivers.protocol import DriverSetup
from penstock.worker.engine.interface import Engine, SequenceSpec

_PROMPT_TOKENS = 128
_STEPS = 40  # without a profiler, then as many with it
_WARM_UP = 8
# Operators of torch that do not compute; they allocate memory, create a view or dispatch to another operator.
_DISPATCH_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "reshape", "as_strided", "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"),
        *("unsqueeze", "squeeze", "expand", "transpose", "t", "permute", "flatten", "alias", "detach", "_unsafe_view"),
        *(
            "empty",
            "empty_like",
            "empty_strided",
            "resize_",
            "to",
            "_to_copy",
            "contiguous",
            "item",
            "linear",
            "matmul",
        ),
        *("new_empty", "lift_fresh", "result_type", "scaled_dot_product_attention", "is_nonzero"),
    )
)


def is_kernel(name: str) -> bool:
    return name.startswith(("aten::", "mkldnn", "native::", "penstock::")) and name not in _DISPATCH_OPERATORS


def outside_share(self_us: Mapping[str, float], wall_us: float) -> float:
    """Return the share of wall time outside tensor kernels. self_us: time of each operator without its callees."""
    return max(0.0, 1 - sum(each for name, each in self_us.items() if is_kernel(name)) / wall_us)


def profile_native_calls() -> None:
    """Record ctypes calls into shared libraries in the profile as `native::NAME`; torch records only its own."""
    plain = ctypes.CDLL.__getitem__

    def shown(library: ctypes.CDLL, name: str) -> Any:
        return _ProfiledFunction(plain(library, name), f"native::{name}")

    ctypes.CDLL.__getitem__ = shown  # type: ignore[method-assign]


class _ProfiledFunction:
    """A profiled function of a shared library, through which its `argtypes` and `restype` are set."""

    _function: Any
    _name: str

    def __init__(self, function: Any, name: str) -> None:
        vars(self).update(_function=function, _name=name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._function, name, value)

    def __call__(self, *arguments: object) -> Any:
        with record_function(self._name):
            return self._function(*arguments)


def main() -> None:
    folder, dtype, batch, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    profile_native_calls()
    cell = BenchCell(batch, _PROMPT_TOKENS, _WARM_UP + 2 * _STEPS + 2)
    setup = DriverSetup(folder, dtype, threads, batch, cell.prompt_tokens + cell.output_tokens)
    engine = build_engine_for(setup)
    _start_decoding(engine, cell, setup.vocab_size)
    _run_steps(engine, _WARM_UP)
    wall_us = _run_steps(engine, _STEPS)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        profiled_us = _run_steps(engine, _STEPS)
    averages = profiler.key_averages()
    self_us = {each.key: each.self_cpu_time_total / _STEPS for each in averages}
    print(
        f"{folder}, {dtype}: decode step of {batch} at a context of about {_PROMPT_TOKENS + _STEPS}, {threads} threads"
    )
    print(averages.table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=40))
    print(f"step: {wall_us / 1000:.3f} ms; under the profiler {profiled_us / 1000:.3f} ms")
    print(
        f"outside tensor kernels: {outside_share(self_us, wall_us):.1%} of a step; "
        f"with what the profiler adds {outside_share(self_us, profiled_us):.1%}"
    )


def _start_decoding(engine: Engine, cell: BenchCell, vocab_size: int) -> None:
    """Run until every sequence decodes."""
    for seq_id, prompt in enumerate(cell.prompts(vocab_size)):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=prompt, max_output_tokens=cell.output_tokens, ignore_eos=True))
    while engine.step().decode_seqs < cell.concurrency:
        pass


def _run_steps(engine: Engine, steps: int) -> float:
    """Return the us per step."""
    start = time.perf_counter()
    for _ in range(steps):
        engine.step()
    return (time.perf_counter() - start) / steps * 1e6


if __name__ == "__main__":
    main()
