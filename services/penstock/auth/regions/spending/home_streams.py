"""The streams of one process to the home region: when another one is opened, and whose catalog counts. No I/O."""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from penstock.auth.regions.catalog.catalog import Catalog

MAX_STREAMS = 8
PAUSE_S = (0.25, 2.0)  # first and longest time between two new streams
REFUSED_PAUSE_S = 5.0  # after a stream whose catalog this region must not take over


class StreamView(Protocol):
    """What is known of a stream."""

    @property
    def is_up(self) -> bool: ...

    @property
    def instance_id(self) -> str:
        """Process in the home region; empty before its hello."""

    @property
    def catalog(self) -> Catalog | None:
        """The whole catalog; None before it has been received."""


S = TypeVar("S", bound=StreamView)


class HomeStreams(Generic[S]):
    """Streams are opened one after the other, until each own partition talks to its owner in the home region.

    The door of the home region chooses the process that a stream reaches. The catalog is that of one stream, because
    two processes may know its latest changes at different times.
    """

    def __init__(self, now: float) -> None:
        self.source: S | None = None
        self._unfollowed_since: float | None = now  # s; None while there is a source
        self._streams: dict[S, None] = {}  # in the order in which they were opened
        self._pause = PAUSE_S[0]
        self._is_refused = False  # the catalog of the latest stream must not be taken over

    def __repr__(self) -> str:
        return f"<HomeStreams {len(self._streams)}, source {self.source and self.source.instance_id}>"

    def __iter__(self) -> Iterator[S]:
        return iter(self._streams)

    @property
    def pause(self) -> float:
        """The s after which `needs_another` is asked again."""
        return REFUSED_PAUSE_S if self._is_refused else self._pause

    def unfollowed(self, now: float) -> float:
        """Return the s since this process last had a source; 0 while it has one."""
        return 0.0 if self._unfollowed_since is None else max(0.0, now - self._unfollowed_since)

    # When another stream is opened.

    def needs_another(self, *, has_partitions: bool, is_covered: bool) -> bool:
        """Return whether to open a stream. `is_covered`: each own partition talks to its owner in the home region."""
        needs = has_partitions and len(self._streams) < MAX_STREAMS and (self.source is None or not is_covered)
        if not needs:
            self._pause = PAUSE_S[0]
        return needs

    def on_opened(self, stream: S) -> None:
        self._streams[stream] = None
        self._is_refused = False

    def is_duplicate(self, stream: S) -> bool:
        """Return whether another stream reaches the same process."""
        others = (each for each in self._streams if each is not stream)
        return any(each.is_up and each.instance_id == stream.instance_id for each in others)

    def on_settled(self, stream: S, partitions: int) -> None:
        """The process of the latest stream is known: `partitions` talk to it. After a useless stream, wait longer."""
        is_useful = stream.is_up and (partitions > 0 or len(self._streams) == 1)
        self._pause = PAUSE_S[0] if is_useful else min(2 * self._pause, PAUSE_S[1])

    def on_ended(self, stream: S) -> None:
        del self._streams[stream]

    # Whose catalog counts.

    def choose_source(self, accepts: Callable[[Catalog], bool]) -> list[S]:
        """Choose the oldest stream with an acceptable catalog. Return those to leave, whose catalog is not."""
        refused = []
        for stream in self._streams:
            if not stream.is_up or stream.catalog is None:
                continue
            if accepts(stream.catalog):
                self.source, self._unfollowed_since = stream, None
                break
            self._is_refused = True
            refused.append(stream)
        return refused

    def on_down(self, stream: S, now: float) -> bool:
        """Return whether the source is lost, so that another one is to be chosen."""
        if stream is not self.source:
            return False
        self.source, self._unfollowed_since = None, now
        return True
