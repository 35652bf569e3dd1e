"""Messages that do not parse: the sender's call fails with INVALID_ARGUMENT.

Without this module, gRPC logs a traceback for each and sends UNKNOWN with the parser's text.
"""

from collections.abc import Callable
from typing import Any

from penstock.chassis.errors import InvalidArgument

Deserialize = Callable[[bytes], Any]


class MessageMalformed(InvalidArgument):
    """The bytes of a message do not parse as the type that its method takes."""

    default_reason = "MESSAGE_MALFORMED"

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes does not parse; send the type that this method takes")
        self.size = size  # bytes


def checked(deserialize: Deserialize | None, *, is_stream: bool) -> Deserialize | None:
    """Return `deserialize` with a MessageMalformed in place of its errors.

    It is raised where a stream's messages are read. The single message of other calls is parsed before the handler
    runs, so there the error is returned in place of the message.
    """
    if deserialize is None:
        return None

    def parsed(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except Exception as error:  # each protobuf runtime raises its own types
            malformed = MessageMalformed(len(raw))
            if is_stream:
                raise malformed from error
            return malformed

    return parsed
