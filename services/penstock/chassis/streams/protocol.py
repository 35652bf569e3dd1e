"""The frame protocol of streams: the versions that this release supports, and the version that two peers agree on.

A release that changes the meaning of frames raises `HIGHEST_VERSION` and keeps `LOWEST_VERSION` until no supported
release needs it, so that releases roll without a moment at which all processes change. Added frames and fields need no
new version, because unknown ones are ignored.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from penstock.chassis.errors import FailedPrecondition
from penstock.v1.stream_pb2 import Hello

LOWEST_VERSION = 1
HIGHEST_VERSION = 1


@cache
def release() -> str:
    """Return the version of the installed package; empty if it is not installed."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return ""


def hello_of(tier: str, instance_id: str, *, zone: str = "") -> Hello:
    """Return the hello of this process. Its address is set once it is known."""
    return Hello(
        protocol=HIGHEST_VERSION,
        min_protocol=LOWEST_VERSION,
        instance_id=instance_id,
        tier=tier,
        zone=zone,
        release=release(),
    )


def agreed_version(ours: Hello, theirs: Hello) -> int:
    """Return the highest version that both peers support. Raises FailedPrecondition / PROTOCOL_UNSUPPORTED."""
    highest = min(ours.protocol, theirs.protocol)
    if highest < max(_lowest(ours), _lowest(theirs), 1):
        text = f"this process supports the frame protocols {_range(ours)}, the peer {_range(theirs)}"
        raise FailedPrecondition(f"{text}; upgrade the older one", reason="PROTOCOL_UNSUPPORTED")
    return highest


def _lowest(hello: Hello) -> int:
    return hello.min_protocol or hello.protocol


def _range(hello: Hello) -> str:
    named = f" (release {hello.release[:64]})" if hello.release else ""
    return f"{_lowest(hello)} to {hello.protocol}{named}"
