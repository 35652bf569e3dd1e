"""Errors that end a run or prevent its start. Errors in the START itself are in `engine.batching.errors`."""

from penstock.chassis.errors import Aborted, DeadlineExceeded, FailedPrecondition, Internal, Overloaded, Unavailable

PROBATION_RETRY_AFTER_S = 10.0


class LeaseLost(Aborted):
    """The lease is gone or was never granted. The edge enqueues the ticket again."""

    default_reason = "LEASE_LOST"


class LeaseRevoked(Aborted):
    """The scheduler revoked the lease. The edge enqueues the ticket again, and the run is no failed attempt."""

    default_reason = "LEASE_REVOKED"


def lease_unannounced(lease_id: str) -> LeaseLost:
    return LeaseLost(f"no scheduler announced lease {lease_id} to this worker; enqueue the ticket again")


def lease_revoked(lease_id: str) -> LeaseRevoked:
    return LeaseRevoked(f"lease {lease_id} was revoked; enqueue the ticket again")


def deadline_passed() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline has passed; all tokens made before it have been sent")


def draining() -> Unavailable:
    return Unavailable("this worker is draining; enqueue the ticket again", reason="DRAINING")


def loading() -> Unavailable:
    return Unavailable("the model is loading; retry in 1 s", reason="LOADING", retry_after=1.0)


def model_mismatch(started: str, served: str) -> FailedPrecondition:
    text = f"this worker serves {served}, and the run is for {started or 'a model without a key'}"
    return FailedPrecondition(f"{text}; enqueue the ticket again", reason="MODEL_MISMATCH")


def engine_died() -> Unavailable:
    return Unavailable("the worker's engine died and is restarting; enqueue the ticket again", reason="ENGINE_DIED")


def engine_crashed() -> Internal:
    text = "this request crashed the model's engine twice and is not run again; report it to the operator of the model"
    return Internal(text, reason="ENGINE_CRASHED")


def tenant_on_probation() -> Overloaded:
    text = (
        "several requests of this tenant crashed the model's engine, and this one ran beside one of them; "
        f"it is not tested now; retry in {PROBATION_RETRY_AFTER_S:.0f} s"
    )
    return Overloaded(text, reason="TENANT_ON_PROBATION", retry_after=PROBATION_RETRY_AFTER_S)
