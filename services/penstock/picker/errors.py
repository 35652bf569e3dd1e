"""Errors of the picker itself. Those of waiting requests are the queue's (`penstock.queue.errors`)."""

from penstock.chassis.errors import Overloaded, Unavailable


class NoEndpoint(Unavailable):
    """No endpoint that the request may go to is ready."""

    default_reason = "NO_ENDPOINT"
    RETRY_AFTER_S = 1.0  # s; two scrapes

    def __init__(self, *, in_subset: bool) -> None:
        text = "no endpoint of the subset is ready" if in_subset else "no endpoint is ready"
        super().__init__(f"{text}; retry in {self.RETRY_AFTER_S:.0f} s", retry_after=self.RETRY_AFTER_S)


class BodyTooLarge(Overloaded):
    """The body of a request exceeds what the picker holds."""

    default_reason = "BODY_TOO_LARGE"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is larger than {max_bytes} bytes; send a shorter prompt")


class BodiesFull(Overloaded):
    """Requests that wait hold as many bytes as the picker may."""

    default_reason = "BODIES_FULL"
    RETRY_AFTER_S = 1.0

    def __init__(self, max_bytes: int) -> None:
        text = f"waiting requests hold {max_bytes} bytes; retry in {self.RETRY_AFTER_S:.0f} s"
        super().__init__(text, retry_after=self.RETRY_AFTER_S)
