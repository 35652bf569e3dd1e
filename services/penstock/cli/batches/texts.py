"""Texts of `penstock batch` about a batch. Pure: `now` is in Unix s."""

from collections.abc import Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.v1 import batches_pb2 as pb

BAR_COLUMNS = 20
STATES: Mapping[int, str] = {
    value: name.removeprefix("BATCH_STATUS_").lower().replace("_", " ") for name, value in pb.BatchStatus.items()
}
ENDED = frozenset(
    {
        pb.BATCH_STATUS_COMPLETED,
        pb.BATCH_STATUS_FAILED,
        pb.BATCH_STATUS_EXPIRED,
        pb.BATCH_STATUS_CANCELLED,
    }
)


def has_ended(batch: pb.Batch) -> bool:
    return batch.status in ENDED


def progress_text(batch: pb.Batch, now: float) -> str:
    """Return one line: a bar, the lines that have ended, and when the last one will."""
    lines = batch.lines
    if not lines.total:
        return f"{STATES[batch.status]}: the file is divided into lines"
    done = lines.completed + lines.failed
    full = BAR_COLUMNS * done // lines.total
    bar = "█" * full + "░" * (BAR_COLUMNS - full)
    parts = [f"{done:,} of {lines.total:,} lines"]
    if lines.failed:
        parts.append(f"{lines.failed:,} failed")
    if batch.HasField("expected_end_time"):
        parts.append(f"ends in {time_text(seconds(batch.expected_end_time) - now)}")
    return f"{bar} {STATES[batch.status]}: {', '.join(parts)}"


def end_text(batch: pb.Batch) -> str:
    """Return what became of a batch, and where its answers are."""
    lines = batch.lines
    parts = [f"{lines.completed:,} of {lines.total:,} lines answered"]
    if lines.failed:
        parts.append(f"{lines.failed:,} failed")
    parts.append(f"{batch.tokens.output:,} output tokens")
    if batch.HasField("failure"):
        parts = [f"{batch.failure.reason}: {batch.failure.message}"]
    text = f"{batch.id} {STATES[batch.status]}: {', '.join(parts)}"
    return f"{text}; penstock batch fetch {batch.id}" if batch.output_file_id or batch.error_file_id else text


def time_text(seconds_left: float) -> str:
    """Return a rough time, such as 45 s, 12 min or 3.5 h."""
    left = max(0.0, seconds_left)
    if left < 90:
        return f"{left:.0f} s"
    return f"{left / 60:.0f} min" if left < 90 * 60 else f"{left / 3_600:.1f} h"


def seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9
