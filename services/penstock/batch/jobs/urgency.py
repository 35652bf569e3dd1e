"""Urgency: the class of the lines of a batch, which rises when the batch may miss its window. Pure."""

from penstock.batch.jobs.batch import Batch
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD, Priority

URGENT_WINDOW_SHARE = 0.1  # of the window, at its end


def class_of_lines(batch: Batch, now: float) -> "Priority.ValueType":
    """Return the class of lines that are claimed now.

    It is batch, and standard in the last tenth of the window if the batch does not end within it at its speed so far.
    Before that time the forecast is too uncertain, and a whole batch of class standard would only delay requests. The
    fair share between tenants of the class standard bounds what the lines take from others.
    """
    if now < batch.expires_at - URGENT_WINDOW_SHARE * batch.window:
        return PRIORITY_BATCH
    end = batch.expected_end(now)
    return PRIORITY_STANDARD if not end or end > batch.expires_at else PRIORITY_BATCH
