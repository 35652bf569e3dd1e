"""Every image serves within 10 s of its start, with its packages alone."""

import pytest

from image_closure import image_processes

pytestmark = pytest.mark.alone

LIMIT_S = 10.0  # as `tools/check_images` has it
TIMEOUT_S = 120.0


def test_every_image_serves_within_10_seconds(tmp_path):
    """The second start counts where the first one was late, which reads the files of all packages from the disk."""
    for _ in range(2):
        with image_processes(tmp_path, TIMEOUT_S) as mesh:
            assert not mesh.failures
            late = {name: seconds for name, seconds in mesh.seconds.items() if seconds > LIMIT_S}
        if not late:
            return
    pytest.fail(f"serve late: {late}")
