"""Packing of a message of the Envoy API into an Any."""

from betterproto2 import Message
from envoy_data_plane.google.protobuf import Any


def pack_any(message: Message) -> Any:
    return Any.pack(message)
