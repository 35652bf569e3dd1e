"""Errors of the store."""

from penstock.chassis.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)


class StoreUnavailable(Unavailable):
    """The database or the place of contents cannot be used now."""

    default_reason = "STORE_UNAVAILABLE"

    def __init__(self, why: str, *, is_in_doubt: bool = False) -> None:
        """is_in_doubt: what the transaction wrote may be there nevertheless."""
        self.is_in_doubt = is_in_doubt
        super().__init__(f"the store of batches cannot be used now: {why}; retry in 1 s", retry_after=1.0)


def is_undone(error: BaseException) -> bool:
    """Return whether a transaction that ended with `error` has written nothing for certain.

    One whose waiter was cancelled may yet be committed by its thread.
    """
    return isinstance(error, PenstockError) and not (isinstance(error, StoreUnavailable) and error.is_in_doubt)


class FileUnknown(NotFound):
    """The tenant has no such file."""

    default_reason = "FILE_UNKNOWN"


class BatchUnknown(NotFound):
    """The tenant has no such batch."""

    default_reason = "BATCH_UNKNOWN"


class IdempotencyKeyReused(InvalidArgument):
    """Another batch of the tenant was created with the key."""

    default_reason = "IDEMPOTENCY_KEY_REUSED"


class FileInUse(FailedPrecondition):
    """A batch that has not ended reads the file."""

    default_reason = "FILE_IN_USE"


class FilesFull(Overloaded):
    """The files of the tenant are as large as they may be."""

    default_reason = "FILES_FULL"


class TooManyBatches(Overloaded):
    """The tenant has as many batches that have not ended as it may have."""

    default_reason = "TOO_MANY_BATCHES"


def check_size(size: int, max_bytes: int) -> None:
    """Raise InvalidArgument / FILE_TOO_LARGE for a file of more than `max_bytes`."""
    if size > max_bytes:
        text = f"a file has at most {max_bytes} bytes; divide it"
        raise InvalidArgument(text, field="file", reason="FILE_TOO_LARGE")
