"""Facts of one request: state, plan, output, attempts and times, as telemetry and upstream frames read them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import grpc

from penstock.edge.lifecycle.attempts import FailedAttempts, LostRun
from penstock.edge.lifecycle.output import GenerationPlan, OutputStream
from penstock.edge.lifecycle.timeline import Timeline
from penstock.mesh.v1.admission_pb2 import Identity

STALL_THRESHOLD_S = 1.0  # a timer that fires later than this shows that the process stalled
# Codes and reasons of a rejected run that another lease may cure.
RETRYABLE_CODES = (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
RETRYABLE_REASONS = ("MODEL_MISMATCH",)


class RequestState(StrEnum):
    TOKENIZING = "tokenizing"
    RESERVING = "reserving"
    QUEUED = "queued"
    OFFERED = "offered"  # to another region, which has not answered yet
    LEASED = "leased"  # until the start frame is sent
    RUNNING = "running"
    STOPPING = "stopping"  # the cancel frame is sent and not acknowledged yet
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class LifecycleLimits:
    max_attempts: int = 4  # runs of one request, including the first
    upstream_timeout: float = 30.0  # s without auth, without any queue shard, or mid-answer without any worker
    retry_interval: float = 0.25  # s between retries of a transient failure
    cancel_ack_timeout: float = 30.0  # s for a connected worker to acknowledge a cancel
    spills: bool = False  # whether a request that the queue rejects for load may be offered to other regions
    offer_timeout: float = 1.0  # s for another region to answer an offer


class RequestRecord:
    """State of one request and the values recorded during its life. Times are Unix seconds; NaN means never."""

    def __init__(self, ticket_id: str, *, arrived_at: float, deadline: float, limits: LifecycleLimits) -> None:
        self.ticket_id = ticket_id
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.state = RequestState.TOKENIZING
        self.timeline = Timeline(arrived_at)
        self.attempt = 1
        self.failed_attempts = FailedAttempts(limits.upstream_timeout)
        self.lost_runs: Sequence[LostRun] = ()
        self.enqueued_at = math.nan  # of the first enqueue; later attempts keep it
        self.is_held = False  # it has waited for the first worker of its model, or waits
        self.was_queued = False  # a shard has admitted the ticket
        self.first_token_at = math.nan
        self.last_token_at = math.nan
        self.cancelled_at = math.nan  # when the client cancelled
        self.cached_prompt_tokens = 0
        self.outcome = ""  # as settled: stop, length, cancelled, shed or failed
        self.worker_id = ""  # of the latest lease; of a run in another region, the `run_name` of that region
        self.embedding: Sequence[float] = ()  # of the prompt, if the plan wants one and its run has finished
        self.identity = Identity()
        self.reservation_id = ""
        # Tokens of this request to charge, because another edge charges the rest of the answer. None: all of them.
        self.handed_over_tokens: int | None = None
        self.charges_prompt = True  # False for a further choice, whose prompt is charged with the first
        self._plan: GenerationPlan | None = None
        self._output: OutputStream | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ticket_id} {self.state} attempt {self.attempt} {self._output}>"

    @property
    def is_done(self) -> bool:
        return self.state is RequestState.DONE

    @property
    def plan(self) -> GenerationPlan:
        assert self._plan is not None, "the prompt is not tokenized yet"
        return self._plan

    @property
    def output(self) -> OutputStream:
        assert self._output is not None, "the prompt is not tokenized yet"
        return self._output

    @property
    def has_output(self) -> bool:
        """Whether the answer has begun, also in an earlier request that this one resumes."""
        return self._output is not None and bool(self._output.token_ids)

    @property
    def model(self) -> str:
        """Name of the model that answers. Empty until the prompt is tokenized."""
        return self._plan.model if self._plan else ""

    @property
    def model_key(self) -> str:
        """Key of the model and its version. Empty until the prompt is tokenized."""
        return self._plan.model_key if self._plan else ""

    @property
    def prompt_tokens(self) -> int:
        return len(self._plan.prompt_ids) if self._plan else 0

    @property
    def charged_prompt_tokens(self) -> int:
        return self.prompt_tokens if self.charges_prompt else 0

    @property
    def output_tokens(self) -> int:
        """Tokens generated for this request, without those that a resumed answer had before."""
        return self._output.output_tokens if self._output else 0
