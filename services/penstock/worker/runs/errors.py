"""Why a run cannot start or go on, in the words of the contract. What is wrong with the START itself is in `errors`."""

from penstock.chassis.errors import Aborted, DeadlineExceeded, Internal, Unavailable


class LeaseLost(Aborted):
    """The right to run is gone, or was never given. The edge enqueues again."""

    default_reason = "LEASE_LOST"


def lease_unannounced(lease_id: str) -> LeaseLost:
    return LeaseLost(f"no scheduler announced lease {lease_id} to this worker; enqueue the ticket again")


def lease_revoked(lease_id: str) -> LeaseLost:
    return LeaseLost(f"lease {lease_id} was revoked; enqueue the ticket again")


def deadline_passed() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline has passed; what was made of the answer has been sent")


def draining() -> Unavailable:
    return Unavailable("this worker drains; enqueue the ticket again", reason="DRAINING")


def loading() -> Unavailable:
    return Unavailable("the model loads; ask again in a moment", reason="LOADING", retry_after=1.0)


def engine_died() -> Unavailable:
    return Unavailable("the worker's engine died and starts anew; enqueue the ticket again", reason="ENGINE_DIED")


def engine_crashed() -> Internal:
    text = "this request crashed the model's engine twice and is not run again; tell who runs the model"
    return Internal(text, reason="ENGINE_CRASHED")
