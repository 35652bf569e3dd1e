"""Limits toward the peer of a connection: calls that it may have open, and bytes that this end holds for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Limits toward the peers of one server or one client. The defaults are those of streams between tiers."""

    message_bytes: int  # of a message that the peer sends, before and after decompression
    window_bytes: int = 1 << 20  # that the peer may send on a stream while no one reads from it
    max_streams: int = 1_000  # that a client may have open at once
    max_connections: int = 8_192  # of a server
    max_held_messages: int = 2  # of the largest size, whose bytes a connection may hold; beyond it, it is closed

    @property
    def running_calls(self) -> int:
        """Most calls of one connection whose handlers run, including those that end because they were cancelled."""
        return 2 * self.max_streams

    @property
    def held_bytes(self) -> int:
        """Most bytes of messages that are not complete or not read, on one connection."""
        return self.max_held_messages * self.message_bytes
