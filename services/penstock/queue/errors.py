"""Errors with which tickets are shed. Every message says what the client can do next."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.chassis.errors import DeadlineExceeded, Internal, NotFound, Overloaded, Unavailable
from penstock.mesh.model_key import model_name


class RejectionWindow(NamedTuple):
    """The period and sizes for which tickets similar to a rejected one are rejected as well."""

    duration: float  # s from the arrival of the ticket at its edge
    min_prompt_tokens: int  # shorter prompts may be admitted
    min_output_tokens: int  # shorter outputs may be admitted
    is_deadline_bound: bool = False  # tickets with a later deadline may be admitted
    max_prompt_tokens: int = 0  # longer prompts may be admitted; 0: no limit


RejectionWindowsFn = Callable[[], Iterable[RejectionWindow]]  # computed on demand, before the book changes


class AdmissionRejected(Overloaded):
    """Rejection because of load, which similar tickets would receive as well."""

    rejection_windows: RejectionWindowsFn = tuple


class QueueFull(AdmissionRejected):
    """The queue is at its ticket limit."""

    default_reason = "QUEUE_FULL"

    def __init__(self, waiting: int, retry_after: float) -> None:  # tickets, s
        text = f"the queue is full: {waiting} requests are waiting; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class QueueTokensFull(AdmissionRejected):
    """The queue is at its token limit."""

    default_reason = "QUEUE_TOKENS_FULL"

    def __init__(self, tokens: int, waiting: int, max_tokens: int, retry_after: float) -> None:
        text = f"{tokens} tokens in addition to {waiting} waiting tokens exceed the queue's limit of {max_tokens}"
        super().__init__(f"{text}; retry in {retry_after:.1f} s", retry_after=retry_after)


class Evicted(Overloaded):
    """A ticket of a higher class took the place of this ticket."""

    default_reason = "EVICTED"

    def __init__(self, retry_after: float) -> None:
        text = f"a request of a higher priority class took the place of this request; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class DeadlineUnreachable(AdmissionRejected):
    """The predicted time to first token exceeds the deadline or the TTFT target."""

    def __init__(self, first_token: float, limit: float, retry_after: float) -> None:  # s
        text = f"the predicted time to first token is {first_token:.1f} s, more than the allowed {limit:.1f} s"
        super().__init__(f"{text}; retry in {retry_after:.1f} s or allow more time", retry_after=retry_after)

    @classmethod
    def while_waiting(cls, limit: float, retry_after: float) -> "DeadlineUnreachable":
        return cls(limit, limit, retry_after)


class WouldDelayOthers(AdmissionRejected):
    """The ticket would be in time, but would delay longer prompts beyond their TTFT commitments."""

    def __init__(self, retry_after: float) -> None:
        text = f"this prompt would make admitted requests late; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class DeadlinePassed(DeadlineExceeded):
    """The deadline of the ticket has passed."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before a worker was free; allow more time or retry later")


class ModelUnknown(NotFound):
    """Workers are attached, but none of them serves the model."""

    default_reason = "MODEL_UNKNOWN"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"no worker serves {model_name(model)!r}; request a model that ListModels returns",
            metadata={"model": model_name(model)},
        )


class PoisonSuspected(Unavailable):
    """A worker tests whether this request crashes engines. It is blocked until the result is known."""

    default_reason = "SUSPECT"
    RETRY_AFTER_S = 0.25  # s

    def __init__(self) -> None:
        text = "a worker tests whether this request crashes the model's engine; retry in a moment"
        super().__init__(text, retry_after=self.RETRY_AFTER_S)


class PoisonConfirmed(Internal):
    """The request crashes engines."""

    default_reason = "ENGINE_CRASHED"

    def __init__(self) -> None:
        super().__init__(
            "this request crashed the model's engine and is not run again; report it to the operator of the model"
        )


class NoWorker(Unavailable):
    """No worker can run the ticket now. `retry_after` is None if no worker can ever run it."""

    default_reason = "NO_WORKER"

    @classmethod
    def at_present(cls, model: str, retry_after: float) -> "NoWorker":
        text = f"no worker serves {model_name(model)!r} at present; retry in {retry_after:.0f} s"
        return cls(text, retry_after=retry_after, metadata={"model": model_name(model)})

    @classmethod
    def none_large_enough(cls, model: str, tokens: int) -> "NoWorker":
        name = model_name(model)
        text = f"no worker of {name!r} can ever hold {tokens} tokens; shorten the prompt or lower max_output_tokens"
        return cls(text, metadata={"model": name, "tokens": str(tokens)})

    @classmethod
    def none_left(cls, model: str, avoided: int, retry_after: float) -> "NoWorker":
        name = model_name(model)
        text = f"{avoided} workers of {name!r} failed under this request, and no other worker can run it"
        return cls(f"{text}; retry in {retry_after:.0f} s", retry_after=retry_after, metadata={"model": name})
