"""Whom nobody is to run, as schedulers say it of requests that crashed an engine, or may have."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.chassis.own_time import OwnTime
from penstock.mesh.v1.ticket_pb2 import Blame
from penstock.queue.errors import Guilty, Suspect
from penstock.queue.waiting import WaitingTicket

MEMORY = 10.0  # s that what a lost scheduler said holds: it may be back by then, or its workers elsewhere
HEARING = 1.0  # s after which the workers of a scheduler that was lost, or is back, have said whom they suspect


@dataclass(slots=True)
class Blames:
    """By scheduler and fingerprint whether it is beyond doubt.

    While a scheduler is missing, some worker may have nobody to tell whom it suspects. A run that was lost with its
    worker, or with its edge, may be the suspect: it waits until such a worker was heard, and goes on elsewhere then.
    Time is the shard's own: while it stood still it heard nobody.
    """

    own_time: OwnTime = field(default_factory=OwnTime)
    _said: dict[str, dict[int, bool]] = field(default_factory=dict)
    _lost: dict[int, tuple[bool, float]] = field(default_factory=dict)  # what lost schedulers had said, and until when
    _deaf_until: float = 0.0  # s; when all workers are heard again

    def joined(self, scheduler: str, now: float) -> None:
        self._said[scheduler] = {}
        self._deaf_until = self.own_time.at(now) + HEARING

    def lost(self, scheduler: str, now: float) -> None:
        ran = self.own_time.at(now)
        self._lost = {key: each for key, each in self._lost.items() if each[1] > ran}
        self._lost |= {key: (is_guilty, ran + MEMORY) for key, is_guilty in self._said.pop(scheduler).items()}
        self._deaf_until = ran + HEARING

    def hear(self, scheduler: str, blames: Iterable[Blame]) -> dict[int, bool]:
        """Take it for all that a scheduler says; return what is news of whom: of suspects False, of the guilty True."""
        known = self._named
        self._said[scheduler] = {blame.fingerprint: blame.is_guilty for blame in blames}
        return {key: is_guilty for key, is_guilty in self._named.items() if known.get(key) is not is_guilty}

    def refusal(self, fingerprint: int, now: float) -> PenstockError | None:
        """Return why nobody is to run such a request."""
        found = {said.get(fingerprint) for said in self._said.values()}
        is_guilty, until = self._lost.get(fingerprint, (False, -math.inf))
        if until > self.own_time.at(now):
            found.add(is_guilty)
        return Guilty() if True in found else Suspect() if False in found else None

    def bar(self, ticket: WaitingTicket, now: float) -> bool:
        """Tell whether a ticket that was let in is not to be run now."""
        is_deaf = self.own_time.at(now) < self._deaf_until
        return (is_deaf and ticket.may_be_blamed) or self.refusal(ticket.fingerprint, now) is not None

    @property
    def _named(self) -> dict[int, bool]:
        """Who is guilty by anybody's word is."""
        found: dict[int, bool] = {}
        for said in self._said.values():
            for key, is_guilty in said.items():
                found[key] = is_guilty or found.get(key, False)
        return found
