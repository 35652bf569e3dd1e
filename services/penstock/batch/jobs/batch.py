"""One batch as a state machine of plain calls, with the facts that its store keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from penstock.chassis.errors import FailedPrecondition
from penstock.v1 import batches_pb2 as pb


class Status(IntEnum):
    """As in the contract."""

    VALIDATING = pb.BATCH_STATUS_VALIDATING
    IN_PROGRESS = pb.BATCH_STATUS_IN_PROGRESS
    FINALIZING = pb.BATCH_STATUS_FINALIZING
    COMPLETED = pb.BATCH_STATUS_COMPLETED
    FAILED = pb.BATCH_STATUS_FAILED
    EXPIRED = pb.BATCH_STATUS_EXPIRED
    CANCELLING = pb.BATCH_STATUS_CANCELLING
    CANCELLED = pb.BATCH_STATUS_CANCELLED


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED})
RUNNING = frozenset({Status.VALIDATING, Status.IN_PROGRESS})  # states that a cancel or the end of the window changes


class BatchEnded(FailedPrecondition):
    """The batch has reached its final state."""

    default_reason = "BATCH_ENDED"


@dataclass(slots=True, kw_only=True)
class Batch:
    """One batch. Times are Unix seconds; 0: not yet."""

    batch_id: str
    tenant_id: str
    key_id: str
    delegation: bytes = field(repr=False)
    endpoint: str
    input_file_id: str
    window: float  # s
    output_ttl: float  # s
    metadata: Mapping[str, str] = field(default_factory=dict)
    status: Status = Status.VALIDATING
    created_at: float
    started_at: float = 0.0
    finalizing_at: float = 0.0
    ended_at: float = 0.0
    cancelled_at: float = 0.0
    expired: bool = False  # its window has ended before its lines
    failure_reason: str = ""
    failure_message: str = ""
    lines: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    output_file_id: str = ""
    error_file_id: str = ""
    number: int = 0  # of its row

    @property
    def expires_at(self) -> float:
        return self.created_at + self.window

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def may_run(self) -> bool:
        """Whether lines of it may start."""
        return self.status is Status.IN_PROGRESS

    def start(self, lines: int, now: float) -> None:
        """Its file is divided into chunks of `lines` lines together. No effect if it is no longer validating."""
        if self.status is Status.VALIDATING:
            self.status, self.lines, self.started_at = Status.IN_PROGRESS, lines, now
        elif self.status is Status.CANCELLING:
            self.lines = lines

    def fail(self, reason: str, message: str, now: float) -> None:
        """Its file cannot be read as lines."""
        if self.status is Status.VALIDATING:
            self.status, self.ended_at = Status.FAILED, now
            self.failure_reason, self.failure_message = reason, message

    def cancel(self, now: float) -> None:
        """Raises BatchEnded. A batch that writes its output already goes on."""
        if self.status in (Status.CANCELLING, Status.CANCELLED):
            return
        if self.has_ended:
            raise BatchEnded(f"batch {self.batch_id} has ended; it cannot be cancelled")
        self.cancelled_at = now
        if self.status in RUNNING:
            self.status = Status.CANCELLING

    def lapse(self, now: float) -> bool:
        """End the window. Return whether that changed anything.

        A file is divided first, as each line without an answer has an error.
        """
        if self.may_run and now >= self.expires_at:
            self.status, self.expired, self.finalizing_at = Status.FINALIZING, True, now
            return True
        return False

    def on_lines_ended(self, now: float) -> None:
        """All chunks have ended, or none is held and no line may run: its output can be written."""
        if self.status is Status.IN_PROGRESS:
            self.status, self.finalizing_at = Status.FINALIZING, now

    def finish(self, now: float, output_file_id: str, error_file_id: str) -> None:
        """Its output is written. The files of an empty output have no id."""
        self.output_file_id, self.error_file_id = output_file_id, error_file_id
        self.ended_at = now
        if self.status is Status.CANCELLING:
            self.status = Status.CANCELLED
        elif self.status is Status.FINALIZING:
            self.status = Status.EXPIRED if self.expired else Status.COMPLETED

    def expected_end(self, now: float) -> float:
        """Return when its lines will have ended at the speed so far; 0: not known."""
        done = self.completed + self.failed
        if not self.may_run or not done or now <= self.started_at:
            return 0.0
        return now + (self.lines - done) * (now - self.started_at) / done

    def to_message(self, now: float) -> pb.Batch:
        message = pb.Batch(
            id=self.batch_id,
            endpoint=self.endpoint,
            input_file_id=self.input_file_id,
            status=self.status.value,
            output_file_id=self.output_file_id,
            error_file_id=self.error_file_id,
            lines=pb.LineCounts(total=self.lines, completed=self.completed, failed=self.failed),
            tokens=pb.TokenCounts(input=self.input_tokens, output=self.output_tokens),
            metadata=self.metadata,
        )
        message.completion_window.FromMilliseconds(round(1e3 * self.window))
        if self.failure_reason:
            message.failure.reason, message.failure.message = self.failure_reason, self.failure_message
        times = {
            "create_time": self.created_at,
            "start_time": self.started_at,
            "finalize_time": self.finalizing_at,
            "end_time": self.ended_at,
            "cancel_time": self.cancelled_at,
            "expire_time": self.expires_at,
            "expected_end_time": self.expected_end(now),
        }
        for name, time in times.items():
            if time:
                getattr(message, name).FromMilliseconds(round(1e3 * time))
        return message
