"""The edge's session with auth: asks, and the settlements auth has not confirmed yet."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from penstock.chassis.channels import PeerSet, channel
from penstock.chassis.errors import Unavailable, error_from_failure
from penstock.chassis.lifecycle import background
from penstock.chassis.streams import Link
from penstock.edge.flight.effects import Settle
from penstock.edge.flight.state import State
from penstock.edge.flights import Flights
from penstock.edge.grace.limits import GraceLimits
from penstock.edge.grace.unanswered import Unanswered
from penstock.edge.links import frames
from penstock.edge.links.gathered import Gathered
from penstock.edge.links.grace import Grace
from penstock.edge.passage import Control, Passage
from penstock.mesh.v1.admission_pb2 import (
    AdmitRequest,
    AdmitResponse,
    Admitted,
    Credential,
    Identified,
    Identify,
    Identity,
    Refused,
)
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.v1.inference_pb2 import Priority
from penstock.v1.stream_pb2 import Hello

REMIND_EVERY = 5.0  # s

AuthStream = Link[AdmitRequest, AdmitResponse]


class AuthLink:
    """One stream to every auth replica; all is said to one of them until it is lost, then again to the next.

    Saying it again is harmless: reserve and settle are idempotent on their ids. While all are away, `Grace` decides.
    """

    def __init__(
        self, addresses: Sequence[str], hello: Hello, flights: Flights, control: Control, grace: GraceLimits
    ) -> None:
        self._hello = hello
        self._flights = flights
        self._control = control
        self._links: dict[str, AuthStream] = {}
        self._chosen = ""
        self._unsettled: dict[str, AdmitRequest] = {}
        self._gathered = Gathered(self._send, asyncio.get_running_loop())  # settlements of those that left
        self._unanswered = Unanswered(most=flights.max_flights)
        self._asked: dict[str, tuple[AdmitRequest, asyncio.Future[Identity]]] = {}
        self._settled = asyncio.Event()
        self._settled.set()
        self._grace = Grace(grace, control, say=self._say, overdue=self._decide_all)
        self._peers = PeerSet(addresses, self._open)

    @property
    def is_up(self) -> bool:
        return bool(self._chosen) and self._links[self._chosen].is_up

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._links.values())

    @property
    def is_away(self) -> bool:
        """Whether the edge decides by itself at the moment."""
        return self._grace.is_away

    @property
    def unsettled(self) -> int:
        return len(self._unsettled) + self._grace.unbooked

    @property
    def grace_figures(self) -> dict[str, float]:
        return {
            "auth_away": self.is_away,
            "admitted_in_grace": self._grace.admitted,
            "refused_in_grace": self._grace.refused,
            "unbooked": self._grace.unbooked,
            "known_callers": self._grace.known_callers,
        }

    async def run(self) -> None:
        try:
            async with background(self._remind()):
                await self._peers.run()
        finally:
            self._gathered.close()
            self._grace.close()

    async def all_settled(self) -> None:
        self._gathered.release()
        if self._grace.unbooked:
            self._settled.clear()
        await self._settled.wait()

    def met(self, credential: Credential, asked: "Priority.ValueType") -> Identity | None:
        """Return who the caller is, of the class it would be granted; None when auth has not let it in of late."""
        return self._grace.met(credential, asked)

    def reserve(self, passage: Passage) -> None:
        """Ask, or decide; while nobody knows yet whether auth is away the ask is made again when it is back."""
        if self.is_away:
            self._grace.decide(passage)
            return
        self._grace.asked(passage.ticket_id)
        frame = frames.reserve(passage)
        if self._say(frame):
            self._unanswered.asked(passage.ticket_id, frame)

    def settle(self, ticket_id: str, reservation_id: str, spent: Settle) -> None:
        """End a reservation; one that auth has not named yet ends when it has."""
        if not reservation_id:
            self._grace.ended(ticket_id, spent)
            return
        self._settled.clear()
        frame = self._unsettled[reservation_id] = frames.settle(reservation_id, spent)
        if spent.outcome == "cancelled":
            self._gathered.put(frame)
        else:
            self._say(frame)

    async def identify(self, credential: Credential, patience: float) -> Identity:
        """Return who the caller is; raises what auth refuses it with, or Unavailable when it does not answer."""
        if self.is_away:
            return self._grace.identify(credential)
        request_id = uuid4().hex
        frame = AdmitRequest(identify=Identify(request_id=request_id, credential=credential))
        answer: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = frame, answer
        self._grace.asked(request_id)
        self._say(frame)
        try:
            async with asyncio.timeout(patience):
                return await answer
        except TimeoutError:
            raise Unavailable("auth does not answer; retry in 1 s", reason="AUTH_LOST", retry_after=1.0) from None
        finally:
            del self._asked[request_id]

    async def _remind(self) -> None:
        """Say again what auth heard and did not confirm, as when its store could not be written."""
        while True:
            before, unbooked = set(self._unsettled), self._grace.ticket_ids
            await asyncio.sleep(REMIND_EVERY)
            self._grace.remind(unbooked)
            for reservation_id in before & self._unsettled.keys():
                self._say(self._unsettled[reservation_id])
            self._ask_for_nobody()

    def _ask_for_nobody(self) -> None:
        """Have auth name what it may hold for flights that are over, so that it is given back."""
        booked = self._grace.ticket_ids
        for frame in self._unanswered.of_nobody(lambda each: each in booked or self._flights.get(each) is not None):
            self._say(frame)

    def _say(self, frame: AdmitRequest) -> bool:
        """Say it after what is held back, which may make room for it; False where no replica is there to hear it."""
        self._gathered.release()
        return self._send(frame)

    def _send(self, frame: AdmitRequest) -> bool:
        return bool(self._chosen) and self._links[self._chosen].send(frame)

    async def _open(self, address: str) -> None:
        async with channel(address) as to_auth:
            link = self._links[address] = AuthStream(
                f"auth {address}",
                lambda: AdmissionServiceStub(to_auth).Admit(),
                AdmitRequest,
                self._hello,
                on_frame=lambda frame: self._on_frame(address, frame),
                on_up=lambda _: self._on_up(address),
                on_down=lambda _: self._on_down(address),
                # A peer that comes back hears of every flight at once, of as many that auth has not booked, and of as
                # many that are over and not answered; a stalled one of two frames each at most.
                capacity=6 * self._flights.max_flights,
            )
            try:
                await link.run()
            finally:
                del self._links[address]

    def _on_up(self, address: str) -> None:
        if not self._chosen:
            self._choose(address)
        self._control.link_up()

    def _on_down(self, address: str, *, on_purpose: bool = False) -> None:
        if self._chosen == address:
            others = sorted(each for each, link in self._links.items() if link.is_up and each != address)
            self._choose(others[0] if others else "", on_purpose=on_purpose)

    def _choose(self, address: str, *, on_purpose: bool = False) -> None:
        """Say all that is open to another replica: whether the last one heard it, nobody knows."""
        self._chosen = address
        self._gathered.forget()  # `_unsettled` has it
        if not address:
            self._grace.went(on_purpose=on_purpose)
            return
        self._grace.came()
        for frame in self._unsettled.values():
            self._say(frame)
        for request_id, (frame, _) in self._asked.items():
            self._grace.asked(request_id)
            self._say(frame)
        self._ask_for_nobody()
        for passage in self._flights.in_state(State.RESERVING):
            self._control.apply(passage, passage.flight.auth_up())

    def _on_frame(self, address: str, frame: AdmitResponse) -> None:
        match frame.WhichOneof("frame"):
            case "admitted":
                self._grace.heard(frame.admitted.request_id)
                self._unanswered.answered(frame.admitted.request_id)
                self._on_admitted(frame.admitted)
            case "refused":
                self._grace.heard(frame.refused.request_id)
                self._unanswered.answered(frame.refused.request_id)
                self._on_refused(frame.refused)
            case "settled":
                self._grace.heard()
                self._on_settled(frame.settled.reservation_id)
            case "identified":
                self._grace.heard(frame.identified.request_id)
                self._on_identified(frame.identified)
            case "end":
                self._on_down(address, on_purpose=True)

    def _on_identified(self, identified: Identified) -> None:
        if identified.request_id in self._asked:
            _, answer = self._asked[identified.request_id]
            if not answer.done():
                answer.set_result(identified.identity)

    def _on_admitted(self, admitted: Admitted) -> None:
        passage, reservation_id = self._flights.get(admitted.request_id), admitted.reservation_id
        entry = self._grace.booked(admitted.request_id)
        self._grace.learn(admitted, passage)
        if entry and entry.spent:
            self.settle(admitted.request_id, reservation_id, entry.spent)
            return
        if passage is None:  # nobody waits for it any more
            if reservation_id not in self._unsettled:
                self.settle(admitted.request_id, reservation_id, Settle(0, 0, "cancelled"))
            return
        if entry:
            passage.flight.reservation_id = reservation_id
            return
        flight = passage.flight
        was_asked = flight.state is State.RESERVING
        now = self._control.now()
        effects = flight.admitted(admitted.identity, admitted.reservation_id, now)
        if was_asked:
            passage.record.admitted(now)
        self._control.apply(passage, effects)

    def _on_refused(self, refused: Refused) -> None:
        if self._grace.is_unbooked(refused):
            self._check_settled()
            return
        error = error_from_failure(refused.failure)
        if refused.request_id in self._asked:
            _, answer = self._asked[refused.request_id]
            if not answer.done():
                answer.set_exception(error)
        elif passage := self._flights.get(refused.request_id):
            self._grace.unlearn(refused, passage.credential)
            if refused.key_id and passage.flight.state is State.RESERVING:
                passage.flight.identity = Identity(tenant_id=refused.tenant_id, key_id=refused.key_id)
            self._control.apply(passage, passage.flight.refused(error, self._control.now()))

    def _on_settled(self, reservation_id: str) -> None:
        self._unsettled.pop(reservation_id, None)
        self._check_settled()

    def _check_settled(self) -> None:
        if not self.unsettled:
            self._settled.set()

    def _decide_all(self) -> None:
        """Auth has become away for those who wait for it."""
        for passage in self._flights.in_state(State.RESERVING):
            self._grace.decide(passage, was_asked=True)
        for frame, answer in list(self._asked.values()):
            if answer.done():
                continue
            try:
                answer.set_result(self._grace.identify(frame.identify.credential))
            except Unavailable as error:
                answer.set_exception(error)
