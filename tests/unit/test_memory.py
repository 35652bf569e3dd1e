"""Memory of large blocks returns to the system."""

import subprocess
import sys

import pytest

GROWTH = """
import sys
import psutil
from penstock.chassis.memory import map_large_blocks

MIB = 1 << 20

def body():
    return bytes(16 * MIB)

if sys.argv[1] == "mapped":
    assert map_large_blocks()
body()  # by default glibc places blocks of this size on the heap from now on
before, kept = psutil.Process().memory_info().rss, []
for _ in range(4):
    held = [body() for _ in range(4)]
    kept.append(bytearray(64 * 1024))  # above them, so that the heap cannot shrink
    del held
print((psutil.Process().memory_info().rss - before) // MIB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_bodies_do_not_stay_in_the_process():
    growth = {
        mode: int(subprocess.check_output([sys.executable, "-c", GROWTH, mode], text=True))
        for mode in ("mapped", "default")
    }
    assert growth["mapped"] <= 8, "MiB"
    assert growth["default"] > 32, "the test frees bodies in an order in which the heap cannot shrink"
