"""Durations as they come over the wire: whoever sends one chooses all of its 128 bits."""

from google.protobuf.duration_pb2 import Duration


def seconds_of(duration: Duration) -> float:
    """Return seconds. Unlike `ToTimedelta` it takes every value a message can hold, so that bounds can be checked."""
    return float(duration.seconds) + duration.nanos / 1e9
