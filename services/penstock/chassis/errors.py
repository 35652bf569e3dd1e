"""Typed errors, and their conversion to and from gRPC statuses and `Failure` frames.

Knows gRPC statuses and google.rpc details, but no tier: tiers raise these errors with a `reason` of their own.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import grpc
import structlog
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, QuotaFailure, RetryInfo

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.v1.failure_pb2 import Failure, FieldViolation, QuotaViolation

log = structlog.get_logger()

DOMAIN = "penstock"
PUSHBACK_METADATA_KEY = "grpc-retry-pushback-ms"  # gRFC A6, for gRPC's own retries; RetryInfo is for applications


class PenstockError(Exception):
    """An error that a caller receives. Programs match on `reason`; the message says what to do next."""

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
        self.extra_metadata: tuple[tuple[str, str], ...] = ()  # sent beside the status of a call

    def details(self) -> list[Message]:
        """google.rpc details: ErrorInfo always, the others if they hold anything."""
        found: list[Message] = [ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)]
        if self.retry_after is not None:
            retry = RetryInfo()
            set_seconds(retry.retry_delay, self.retry_after)
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
        """Metadata beside the status: the details in binary, and the pushback for the retries of gRPC itself.

        The pushback of an error without `retry_after` is negative, which means "do not retry".
        """
        pushback = -1 if self.retry_after is None else round(self.retry_after * 1000)
        details = ("grpc-status-details-bin", self.status().SerializeToString())
        return (details, (PUSHBACK_METADATA_KEY, str(pushback)), *self.extra_metadata)

    def failure(self) -> Failure:
        failure = Failure()
        self.write_to(failure)
        return failure

    def write_to(self, failure: Failure) -> None:
        """Fill an empty `failure` in place, as assigning a message to a field of another would copy it."""
        failure.code, failure.reason, failure.message = self.code.value[0], self.reason, self.message
        for key, value in self.metadata.items():
            failure.metadata[key] = value
        if self.field_violations:
            failure.field_violations.extend(self.field_violations)
        if self.quota_violations:
            failure.quota_violations.extend(self.quota_violations)
        if self.retry_after is not None:
            set_seconds(failure.retry_after, self.retry_after)


class InvalidArgument(PenstockError):
    """The request itself is wrong; a retry of the same request fails, too."""

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
    """The caller is unknown."""

    code, default_reason = grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"


class PermissionDenied(PenstockError):
    """The caller is known and lacks the permission."""

    code, default_reason = grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"


class NotFound(PenstockError):
    """The named object does not exist."""

    code, default_reason = grpc.StatusCode.NOT_FOUND, "NOT_FOUND"


class AlreadyExists(PenstockError):
    """An object of this name exists."""

    code, default_reason = grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS"


class QuotaExceeded(PenstockError):
    """The caller's own limit is reached."""

    code, default_reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED"


class Overloaded(PenstockError):
    """We are full. Never UNAVAILABLE: a proxy's outlier detection would eject a host that is merely busy."""

    code, default_reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"


class Unavailable(PenstockError):
    """This process, or every process that could serve, is draining or lost; a retry may reach another."""

    code, default_reason = grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"


class DeadlineExceeded(PenstockError):
    """The deadline passed or cannot be met."""

    code, default_reason = grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"


class Aborted(PenstockError):
    """The request was valid and has been overtaken by another event; a retry may succeed."""

    code, default_reason = grpc.StatusCode.ABORTED, "ABORTED"


class FailedPrecondition(PenstockError):
    """Calls or frames arrived in the wrong order."""

    code, default_reason = grpc.StatusCode.FAILED_PRECONDITION, "FAILED_PRECONDITION"


class Unimplemented(PenstockError):
    """This process does not serve the method; the message names the tier that does."""

    code, default_reason = grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED"


class Cancelled(PenstockError):
    """The caller cancelled."""

    code, default_reason = grpc.StatusCode.CANCELLED, "CANCELLED"


class Internal(PenstockError):
    """A defect of ours; the log has the details."""

    code, default_reason = grpc.StatusCode.INTERNAL, "INTERNAL"


QUOTA_REASONS = frozenset({QuotaExceeded.default_reason, "BUDGET_EXCEEDED", "RESPONSES_FULL"})

_BY_CODE = {kind.code.value[0]: kind for kind in PenstockError.__subclasses__() if kind is not QuotaExceeded}


def _type_of(failure: Failure) -> type[PenstockError]:
    if failure.reason in QUOTA_REASONS:
        return QuotaExceeded
    return _BY_CODE.get(failure.code, Internal)


def error_from_failure(failure: Failure) -> PenstockError:
    """Return the error that `failure` describes; an unknown code becomes Internal."""
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
    """Return the failure to send for `error`. An error of another type is logged and sent as "internal error"."""
    if isinstance(error, PenstockError):
        return error.failure()
    log.error("unmapped_error", exc_info=error)
    return Internal("internal error").failure()


def error_from_rpc(rpc: grpc.aio.AioRpcError) -> PenstockError:
    """Return the typed error of a failed call, with its details if the server sent them.

    A dead backend appears as INTERNAL "RST_STREAM" through a proxy and as UNAVAILABLE without one. Both become
    Unavailable with reason CONNECTION_LOST, because they are the same event for the caller.
    """
    failure = Failure(code=rpc.code().value[0], message=rpc.details() or rpc.code().name, reason=rpc.code().name)
    blob = dict(rpc.trailing_metadata() or ()).get("grpc-status-details-bin")
    if isinstance(blob, bytes):
        _add_details(failure, status_pb2.Status.FromString(blob))
    elif _is_connection_loss(rpc):
        failure.code, failure.reason = code_pb2.UNAVAILABLE, "CONNECTION_LOST"
    return error_from_failure(failure)


def _is_connection_loss(rpc: grpc.aio.AioRpcError) -> bool:
    # CANCELLED without a cancel of ours: the server ended before it accepted the call.
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
