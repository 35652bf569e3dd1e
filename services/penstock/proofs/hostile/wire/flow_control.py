"""The windows within which a client may send data on one HTTP/2 connection (RFC 9113, 5.2). Pure."""

from dataclasses import dataclass, field

DEFAULT_WINDOW = 65_535  # bytes
MAX_FRAME_BYTES = 16_384  # without another setting of the server


@dataclass(slots=True)
class SendWindows:
    """Bytes that the server grants, for the connection and for each stream."""

    initial: int = DEFAULT_WINDOW
    connection: int = DEFAULT_WINDOW
    streams: dict[int, int] = field(default_factory=dict)

    def on_initial(self, initial: int) -> None:
        """Apply a new initial window, which moves the windows of open streams as well."""
        for stream in self.streams:
            self.streams[stream] += initial - self.initial
        self.initial = initial

    def on_update(self, stream: int, increment: int) -> None:
        if stream:
            self.streams[stream] = self.streams.get(stream, self.initial) + increment
        else:
            self.connection += increment

    def take(self, stream: int, wanted: int) -> int:
        """Return the bytes of the next frame on a stream, at most `wanted`; 0 if a window is empty."""
        window = self.streams.setdefault(stream, self.initial)
        granted = max(0, min(wanted, window, self.connection, MAX_FRAME_BYTES))
        self.streams[stream] -= granted
        self.connection -= granted
        return granted
