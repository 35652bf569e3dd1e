"""Errors of calls on stored responses."""

from penstock.chassis.errors import Aborted, AlreadyExists, NotFound, QuotaExceeded, Unavailable

STORE_RETRY_AFTER_S = 1.0  # s


class ResponseUnknown(NotFound):
    """The tenant has no such response: it never existed, has expired or was deleted."""

    default_reason = "RESPONSE_UNKNOWN"

    def __init__(self, response_id: str) -> None:
        text = f"response {response_id!r} does not exist: it has expired, was deleted or was never stored"
        super().__init__(text, metadata={"response_id": response_id})


class ResponseExists(AlreadyExists):
    """Another response of the tenant has this id."""

    default_reason = "RESPONSE_EXISTS"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"response {response_id!r} exists; choose another id")


class ResponseLost(Aborted):
    """Another edge has claimed the response, or it has ended otherwise."""

    default_reason = "RESPONSE_LOST"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"the lease of response {response_id!r} is no longer valid; read its state")


class ResponsesFull(QuotaExceeded):
    """The stored responses of the tenant have as many bytes as they may have."""

    default_reason = "RESPONSES_FULL"

    @classmethod
    def of(cls, limit: int, used: int) -> "ResponsesFull":
        if not limit:
            return cls("this mesh stores no responses; send the request with `store: false`")
        return cls(
            f"the stored responses of this tenant have {used} of {limit} bytes; delete responses that are not needed,"
            " send the request with `store: false`, or let the operator raise PENSTOCK_AUTH_RESPONSE_BYTES_PER_TENANT"
        )


class ResponseStoreUnavailable(Unavailable):
    """The store did not perform the call in time, or its database is away. It may have performed a call in doubt."""

    default_reason = "STORE_UNAVAILABLE"

    def __init__(self, because: str) -> None:
        text = f"the store of responses is unavailable ({because}); repeat the call"
        super().__init__(text, retry_after=STORE_RETRY_AFTER_S)
