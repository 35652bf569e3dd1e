"""Shifts the Unix time of this process by the offset in a file. Python imports this module at its start.

It is found by PYTHONPATH, in processes that `proofs/testbed/faults/fake_clocks.py` starts. The monotonic clock stays
true.
"""

import os
import time
from pathlib import Path

REREAD_S = 0.1  # s within which a new offset takes effect

_file = Path(os.environ["PROOF_TIME_OFFSET_FILE"])
_true_time_ns = time.time_ns
_offset_ns = 0
_read_at = float("-inf")


def _shifted_time_ns() -> int:
    global _offset_ns, _read_at  # one offset per process
    now = time.monotonic()
    if now - _read_at >= REREAD_S:
        _read_at, _offset_ns = now, round(float(_file.read_text()) * 1e9)
    return _true_time_ns() + _offset_ns


time.time_ns = _shifted_time_ns
time.time = lambda: _shifted_time_ns() / 1e9
