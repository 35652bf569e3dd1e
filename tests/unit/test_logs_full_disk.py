"""A log line that cannot be written is dropped."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import structlog
from penstock.chassis.observability.logs import configure_logs

configure_logs("info")
for number in range(2_000):
    structlog.get_logger().error("store_unavailable", number=number)
print("went on")
"""


def test_a_process_whose_log_is_on_a_full_disk_goes_on():
    with Path("/dev/full").open("wb") as full:
        found = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, check=False)
    assert found.stdout == b"went on\n"
