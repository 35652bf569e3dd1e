"""Memory budget of an edge: the bytes that it holds for prompts and for output that clients have not read."""

from collections.abc import Callable
from typing import Protocol

from penstock.chassis.errors import PenstockError

UNREAD_SHARE = 0.25  # of the budget, which prompts cannot use: 6.7 kB for each of 20,000 requests by default
FREED_SHARE = 0.0625  # of the budget, freed at once: so that a search for the slowest readers pays for many tokens


class SlowReader(Protocol):
    """Unread output that can be dropped."""

    size_bytes: int

    def discard(self, error: PenstockError) -> None:
        """Drop the unread output. `error` is the ending that the client receives in place of the rest."""


class MemoryBudget:
    """Counts held bytes. Prompts are refused beyond their share; unread output may use all that prompts do not use.

    Only slow readers can exhaust the share of unread output. Then the slowest of them are ended; no new prompt and no
    other reader is. Output is counted when it is packed (see `ResponseBuffer`), so that a token costs nothing here.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_prompt_bytes = max_bytes - int(max_bytes * UNREAD_SHARE)
        self.prompt_bytes = 0
        self.unread_bytes = 0  # of slow readers
        self.ended_readers = 0  # since the start
        self.on_exhausted: Callable[[], None] = lambda: None  # must end the slowest readers, at once or soon
        self._slow_readers: set[SlowReader] = set()

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.prompt_bytes} + {self.unread_bytes} of {self.max_bytes} bytes>"

    @property
    def held_bytes(self) -> int:
        return self.prompt_bytes + self.unread_bytes

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes of prompts may be held."""
        return self.prompt_bytes + size <= self.max_prompt_bytes

    def add_prompt(self, size: int) -> None:
        self.prompt_bytes += size
        self._check()

    def remove_prompt(self, size: int) -> None:
        self.prompt_bytes -= size

    def add_unread(self, reader: SlowReader, size: int) -> None:
        self._slow_readers.add(reader)
        self.unread_bytes += size
        self._check()

    def remove_unread(self, reader: SlowReader, size: int) -> None:
        """Uncount a reader that has read its output of `size` bytes, or is gone."""
        self._slow_readers.discard(reader)
        self.unread_bytes -= size

    def slowest_readers(self) -> list[SlowReader]:
        """Return the readers with the most unread bytes, as many as must end for the output of the others to fit.

        Empty if the budget is not exhausted. More is freed than necessary, so that the next search is not soon.
        """
        excess = self.held_bytes - self.max_bytes
        if excess <= 0:
            return []
        excess += int(self.max_bytes * FREED_SHARE)
        slowest: list[SlowReader] = []
        for reader in sorted(self._slow_readers, key=lambda each: each.size_bytes, reverse=True):
            if excess <= 0:
                break
            excess -= reader.size_bytes
            slowest.append(reader)
        return slowest

    def _check(self) -> None:
        if self.prompt_bytes + self.unread_bytes > self.max_bytes:
            self.on_exhausted()
