"""The class of the lines of a batch near the end of its window."""

import pytest

from penstock.batch.jobs.batch import Batch
from penstock.batch.jobs.urgency import class_of_lines
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD

WINDOW_S = 1_000.0


def batch_with(done, lines=100):
    batch = Batch(
        batch_id="b",
        tenant_id="t",
        key_id="k",
        delegation=b"",
        endpoint="/v1/completions",
        input_file_id="f",
        window=WINDOW_S,
        output_ttl=1.0,
        created_at=0.0,
    )
    batch.start(lines, 0.0)
    batch.completed = done
    return batch


@pytest.mark.parametrize(
    ("done", "now", "expected"),
    [
        (10, 899.0, PRIORITY_BATCH),  # late by its forecast, and not near the end
        (10, 901.0, PRIORITY_STANDARD),
        (0, 901.0, PRIORITY_STANDARD),  # no forecast
        (90, 901.0, PRIORITY_STANDARD),  # ends at 1,001 s
        (91, 901.0, PRIORITY_BATCH),  # ends at 990 s
    ],
)
def test_lines_become_standard_near_the_end_of_a_window_that_the_batch_misses_by_its_forecast(done, now, expected):
    assert class_of_lines(batch_with(done), now) == expected
