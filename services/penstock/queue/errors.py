"""Why a ticket is shed, as types. Every message says what to do next."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.chassis.errors import DeadlineExceeded, Internal, NotFound, Overloaded, Unavailable


class RejectionWindow(NamedTuple):
    """For how long nothing of a refused ticket's kind is taken that asks for as much."""

    duration: float  # s from when the ticket came to its edge
    min_prompt_tokens: int  # tokens
    min_output_tokens: int
    is_deadline_bound: bool = False  # what has more time may be taken
    max_prompt_tokens: int = 0  # tokens of a prompt; longer ones may be taken. 0: however long


RejectionWindowsFn = Callable[[], Iterable[RejectionWindow]]  # worked out only for those who ask, before anything moves


class AdmissionRejected(Overloaded):
    """A refusal for load, by figures that others of the same kind would be refused with as well."""

    rejection_windows: RejectionWindowsFn = tuple


class QueueFull(AdmissionRejected):
    """As many tickets wait as may."""

    default_reason = "QUEUE_FULL"

    def __init__(self, waiting: int, retry_after: float) -> None:  # tickets, s
        text = f"{waiting} requests are waiting, the most this queue takes; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class QueueTokensFull(AdmissionRejected):
    """As many tokens wait as may."""

    default_reason = "QUEUE_TOKENS_FULL"

    def __init__(self, tokens: int, waiting: int, max_tokens: int, retry_after: float) -> None:
        text = f"{tokens} tokens beside {waiting} that wait are more than the {max_tokens} this queue takes"
        super().__init__(f"{text}; retry in {retry_after:.1f} s", retry_after=retry_after)


class Evicted(Overloaded):
    """A ticket of a higher class needed the place."""

    default_reason = "EVICTED"

    def __init__(self, retry_after: float) -> None:
        text = f"a request of a higher class needed the place; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class DeadlineUnreachable(AdmissionRejected):
    """No worker would get to it in time, by what was measured."""

    def __init__(self, first_token: float, limit: float, retry_after: float) -> None:  # s
        text = f"the first token would come in {first_token:.1f} s, later than the {limit:.1f} s that there are"
        super().__init__(f"{text}; retry in {retry_after:.1f} s or allow more time", retry_after=retry_after)

    @classmethod
    def while_waiting(cls, limit: float, retry_after: float) -> "DeadlineUnreachable":
        return cls(limit, limit, retry_after)


class WouldDelayOthers(AdmissionRejected):
    """It would be in time, and make longer prompts late that were let in before."""

    def __init__(self, retry_after: float) -> None:
        text = f"its prompt would make others late that were let in before; retry in {retry_after:.1f} s"
        super().__init__(text, retry_after=retry_after)


class DeadlinePassed(DeadlineExceeded):
    """Nobody would wait for the answer any more."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before a worker was free; allow more time or retry later")


class ModelUnknown(NotFound):
    """Workers are there, and none of them serves the model."""

    default_reason = "MODEL_UNKNOWN"

    def __init__(self, model: str) -> None:
        super().__init__(f"no worker serves {model!r}; ask for one that ListModels names", metadata={"model": model})


class PoisonSuspected(Unavailable):
    """A worker finds out whether such a request crashes engines: it is not to crash another's meanwhile."""

    default_reason = "SUSPECT"
    RETRY_AFTER_S = 0.25  # s

    def __init__(self) -> None:
        text = "a worker finds out whether this request crashes the model's engine; ask again in a moment"
        super().__init__(text, retry_after=self.RETRY_AFTER_S)


class PoisonConfirmed(Internal):
    """Every engine would crash."""

    default_reason = "ENGINE_CRASHED"

    def __init__(self) -> None:
        super().__init__("this request crashed the model's engine and is not run again; tell who runs the model")


class NoWorker(Unavailable):
    """Nobody can run the ticket now; `retry_after` None: and nobody ever will."""

    default_reason = "NO_WORKER"

    @classmethod
    def at_present(cls, model: str, retry_after: float) -> "NoWorker":
        text = f"no worker serves {model!r} at present; retry in {retry_after:.0f} s"
        return cls(text, retry_after=retry_after, metadata={"model": model})

    @classmethod
    def none_large_enough(cls, model: str, tokens: int) -> "NoWorker":
        text = f"no worker of {model!r} can ever hold {tokens} tokens; shorten the prompt or lower max_output_tokens"
        return cls(text, metadata={"model": model, "tokens": str(tokens)})

    @classmethod
    def none_left(cls, model: str, avoided: int, retry_after: float) -> "NoWorker":
        text = f"{avoided} workers of {model!r} failed under this request and no other can run it"
        return cls(f"{text}; retry in {retry_after:.0f} s", retry_after=retry_after, metadata={"model": model})
