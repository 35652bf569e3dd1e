"""Errors as types: what a core raises, what a status or a `Failure` frame carries, and the way back.

Knows gRPC statuses and google.rpc details, and no word of any tier: tiers raise these with a `reason` of their own.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

import grpc
import structlog
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, QuotaFailure, RetryInfo

from penstock.chassis.durations import seconds_of
from penstock.v1.failure_pb2 import Failure, FieldViolation, QuotaViolation

log = structlog.get_logger()

DOMAIN = "penstock"
NANOS_PER_S = 1_000_000_000
PUSHBACK_METADATA_KEY = "grpc-retry-pushback-ms"  # gRFC A6: what gRPC's own retries obey; RetryInfo is for applications


class PenstockError(Exception):
    """Anything a caller may be told. `reason` is stable for programs, the message says what to do next."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        retry_after: float | None = None,  # s
        metadata: Mapping[str, str] | None = None,
        field_violations: Sequence[FieldViolation] = (),
        quota_violations: Sequence[QuotaViolation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.retry_after = retry_after
        self.metadata = dict(metadata) if metadata else {}
        self.field_violations = tuple(field_violations)
        self.quota_violations = tuple(quota_violations)

    def details(self) -> list[Message]:
        """google.rpc details: ErrorInfo always, the others where they say something."""
        found: list[Message] = [ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)]
        if self.retry_after is not None:
            retry = RetryInfo()
            retry.retry_delay.FromTimedelta(timedelta(seconds=self.retry_after))
            found.append(retry)
        if self.field_violations:
            bad = [
                BadRequest.FieldViolation(field=each.field, description=each.description)
                for each in self.field_violations
            ]
            found.append(BadRequest(field_violations=bad))
        if self.quota_violations:
            over = [
                QuotaFailure.Violation(subject=each.subject, description=each.description)
                for each in self.quota_violations
            ]
            found.append(QuotaFailure(violations=over))
        return found

    def status(self) -> status_pb2.Status:
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in self.details():
            status.details.add().Pack(detail)
        return status

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What goes beside the status: the details in binary, and the pushback gRPC's own retries obey.

        A negative pushback means "do not retry", which is what an error without `retry_after` says.
        """
        pushback = -1 if self.retry_after is None else round(self.retry_after * 1000)
        return (("grpc-status-details-bin", self.status().SerializeToString()), (PUSHBACK_METADATA_KEY, str(pushback)))

    def failure(self) -> Failure:
        failure = Failure()
        self.write_to(failure)
        return failure

    def write_to(self, failure: Failure) -> None:
        """Set what is set of an empty one, where it stands: whole messages in others are copied."""
        failure.code, failure.reason, failure.message = self.code.value[0], self.reason, self.message
        for key, value in self.metadata.items():
            failure.metadata[key] = value
        if self.field_violations:
            failure.field_violations.extend(self.field_violations)
        if self.quota_violations:
            failure.quota_violations.extend(self.quota_violations)
        if self.retry_after is not None:
            failure.retry_after.FromNanoseconds(round(self.retry_after * NANOS_PER_S))


class InvalidArgument(PenstockError):
    """The request itself is wrong; the same request will never be right."""

    code, default_reason = grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        field_violations: Sequence[FieldViolation] = (),
        reason: str | None = None,
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
        quota_violations: Sequence[QuotaViolation] = (),
    ) -> None:
        named = [FieldViolation(field=field, description=message)] if field else []
        super().__init__(
            message,
            reason=reason,
            retry_after=retry_after,
            metadata=metadata,
            field_violations=[*named, *field_violations],
            quota_violations=quota_violations,
        )


class Unauthenticated(PenstockError):
    """Nobody knows who asks."""

    code, default_reason = grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"


class PermissionDenied(PenstockError):
    """It is known who asks, and that one may not."""

    code, default_reason = grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"


class NotFound(PenstockError):
    """What was named does not exist."""

    code, default_reason = grpc.StatusCode.NOT_FOUND, "NOT_FOUND"


class QuotaExceeded(PenstockError):
    """The caller's own limit is reached."""

    code, default_reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED"


class Overloaded(PenstockError):
    """We are full. Never UNAVAILABLE: a proxy's outlier detection would eject a host that is merely busy."""

    code, default_reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"


class Unavailable(PenstockError):
    """This process, or all that could serve, is going or gone; another try may find another."""

    code, default_reason = grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"


class DeadlineExceeded(PenstockError):
    """The answer cannot come, or did not come, in time."""

    code, default_reason = grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"


class Aborted(PenstockError):
    """Right when asked, overtaken since; asking anew may succeed."""

    code, default_reason = grpc.StatusCode.ABORTED, "ABORTED"


class FailedPrecondition(PenstockError):
    """The order of calls or frames was broken."""

    code, default_reason = grpc.StatusCode.FAILED_PRECONDITION, "FAILED_PRECONDITION"


class Unimplemented(PenstockError):
    """Not served here; the message names who serves it."""

    code, default_reason = grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED"


class Cancelled(PenstockError):
    """The caller left."""

    code, default_reason = grpc.StatusCode.CANCELLED, "CANCELLED"


class Internal(PenstockError):
    """Our own fault; the log has the rest."""

    code, default_reason = grpc.StatusCode.INTERNAL, "INTERNAL"


_BY_CODE = {kind.code.value[0]: kind for kind in PenstockError.__subclasses__() if kind is not QuotaExceeded}


def _type_of(failure: Failure) -> type[PenstockError]:
    if failure.reason == QuotaExceeded.default_reason:
        return QuotaExceeded
    return _BY_CODE.get(failure.code, Internal)


def error_from_failure(failure: Failure) -> PenstockError:
    """Return the error that `failure` was made from; an unknown code becomes Internal."""
    retry_after = seconds_of(failure.retry_after) if failure.HasField("retry_after") else None
    return _type_of(failure)(
        failure.message,
        reason=failure.reason,
        retry_after=retry_after,
        metadata=dict(failure.metadata),
        field_violations=list(failure.field_violations),
        quota_violations=list(failure.quota_violations),
    )


def failure_from(error: BaseException) -> Failure:
    """Return what a peer may hear of `error`: an unmapped one is logged here and told as "internal error"."""
    if isinstance(error, PenstockError):
        return error.failure()
    log.error("unmapped_error", exc_info=error)
    return Internal("internal error").failure()


def error_from_rpc(rpc: grpc.aio.AioRpcError) -> PenstockError:
    """Return the typed error of a failed call, with its details where the server sent them.

    A dead backend shows as INTERNAL "RST_STREAM" through a proxy and as UNAVAILABLE without one: both become
    Unavailable with reason CONNECTION_LOST, because for the caller they are the same event.
    """
    failure = Failure(code=rpc.code().value[0], message=rpc.details() or rpc.code().name, reason=rpc.code().name)
    blob = dict(rpc.trailing_metadata() or ()).get("grpc-status-details-bin")
    if isinstance(blob, bytes):
        _add_details(failure, status_pb2.Status.FromString(blob))
    elif _is_connection_loss(rpc):
        failure.code, failure.reason = code_pb2.UNAVAILABLE, "CONNECTION_LOST"
    return error_from_failure(failure)


def _is_connection_loss(rpc: grpc.aio.AioRpcError) -> bool:
    # CANCELLED that we did not ask for: a server that went away before it had taken the call up.
    if rpc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return True
    return rpc.code() is grpc.StatusCode.INTERNAL and "RST_STREAM" in (rpc.details() or "")


def _add_details(failure: Failure, status: status_pb2.Status) -> None:
    info, retry, bad, quota = ErrorInfo(), RetryInfo(), BadRequest(), QuotaFailure()
    for detail in status.details:
        if detail.Unpack(info):
            failure.reason = info.reason
            failure.metadata.update(info.metadata)
        elif detail.Unpack(retry):
            failure.retry_after.CopyFrom(retry.retry_delay)
        elif detail.Unpack(bad):
            failure.field_violations.extend(
                FieldViolation(field=each.field, description=each.description) for each in bad.field_violations
            )
        elif detail.Unpack(quota):
            failure.quota_violations.extend(
                QuotaViolation(subject=each.subject, description=each.description) for each in quota.violations
            )
