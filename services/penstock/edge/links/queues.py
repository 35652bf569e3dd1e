"""The edge's sessions with the shards of the queue."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from penstock.chassis.channels import PeerSet, channel
from penstock.chassis.errors import error_from_failure
from penstock.chassis.streams import Link
from penstock.edge.catalog import Catalog
from penstock.edge.door import Door
from penstock.edge.flight.state import State
from penstock.edge.flights import Flights
from penstock.edge.links import frames, knocks
from penstock.edge.links.knocks import Knocks
from penstock.edge.links.shards import home
from penstock.edge.passage import Control, Passage
from penstock.edge.request.outline import Knock
from penstock.mesh.v1.queue_pb2 import Shed, SubmitRequest, SubmitResponse
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.v1.stream_pb2 import Hello

ShardStream = Link[SubmitRequest, SubmitResponse]
DRAINING = "DRAINING"
SUSPECT = "SUSPECT"


class QueueLinks:
    """One stream to every shard. A ticket goes to its tenant's shard, or to the next best one while that is away."""

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        flights: Flights,
        control: Control,
        *,
        catalog: Catalog,
        door: Door,
    ) -> None:
        self._hello = hello
        self._flights = flights
        self._control = control
        self._catalog = catalog
        self._door = door
        self._links: dict[str, ShardStream] = {}
        self._draining: set[str] = set()
        self._knocks = Knocks()
        self._peers = PeerSet(addresses, self._open)

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._links.values())

    @property
    def _takers(self) -> set[str]:
        return {address for address, link in self._links.items() if link.is_up} - self._draining

    @property
    def knocks(self) -> int:
        """Count the requests that asked first and wait to hear."""
        return len(self._knocks)

    async def run(self) -> None:
        await self._peers.run()

    def enqueue(self, passage: Passage) -> bool:
        """Give the ticket to a shard; False when none is there."""
        passage.shard = ""
        takers = self._takers
        while shard := home(takers, passage.flight.plan.model, passage.flight.identity.tenant_id):
            if self._links[shard].send(frames.enqueue(passage)):
                passage.shard = shard
                return True
            takers.discard(shard)
        return False

    async def knock(self, knock: Knock) -> None:
        """Ask a shard first whether it would take a request in; raises what it says of load.

        Of those that come together few ask, and the others hear what these were told. Who is not told in time goes on.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(knocks.PATIENCE), self._knocks.turn(knock.kind) as had_to_wait:
                if had_to_wait:
                    self._door.check_again(knock)
                await self._ask(knock)

    async def _ask(self, knock: Knock) -> None:
        shard, sent = home(self._takers, knock.kind.model, knock.kind.tenant_id), self._control.now()
        ticket_id = self._knocks.next_id()
        if shard and self._links[shard].send(frames.knock(ticket_id, knock, sent)):
            shed = await self._knocks.answer(shard, ticket_id)
            if shed:
                self._door.check_knock(knock, shed, sent=sent, now=self._control.now())

    def withdraw(self, passage: Passage) -> None:
        if passage.shard:
            self._withdraw(passage.shard, passage.ticket_id)

    def _withdraw(self, shard: str, ticket_id: str) -> None:
        if link := self._links.get(shard):
            link.send(frames.withdraw(ticket_id, self._control.now()))

    async def _open(self, address: str) -> None:
        async with channel(address) as to_shard:
            link = self._links[address] = ShardStream(
                f"queue {address}",
                lambda: QueueServiceStub(to_shard).Submit(),
                SubmitRequest,
                self._hello,
                on_frame=lambda frame: self._on_frame(address, frame),
                on_up=lambda _: self._on_up(address),
                on_down=lambda _: self._on_down(address),
                # A peer that comes back hears of every flight at once; a stalled one of two frames each at most.
                capacity=2 * self._flights.max_flights,
            )
            try:
                await link.run()
            finally:
                del self._links[address]
                self._catalog.forget(address)

    def _on_up(self, address: str) -> None:
        self._draining.discard(address)
        self._enqueue_again("")
        self._control.link_up()

    def _on_down(self, address: str) -> None:
        self._knocks.lose(address)
        self._catalog.lose(address)
        self._enqueue_again(address)

    def _enqueue_again(self, shard: str) -> None:
        """Move what waits at `shard`, or nowhere, to a shard that is there."""
        for passage in self._flights.in_state(State.QUEUED):
            if passage.shard == shard:
                self._control.apply(passage, passage.flight.queue_lost())

    def _on_frame(self, shard: str, frame: SubmitResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "catalog":
            self._catalog.announce(shard, frame.catalog)
        elif kind == "queued":
            if passage := self._held_by(shard, frame.queued.ticket_id):
                self._door.queued(passage, frame.queued, self._control.now())
                self._control.apply(passage, passage.flight.queued())
        elif kind == "leased":
            lease = frame.leased.lease
            if passage := self._flights.get(lease.ticket_id):
                self._control.apply(passage, passage.flight.leased(lease, self._control.now()))
            else:
                self._withdraw(shard, lease.ticket_id)
        elif kind == "shed":
            self._on_shed(shard, frame.shed)
        elif kind == "welcome":
            self._knocks.hear(shard, frame.welcome.ticket_id, None)
        elif kind == "end":
            self._draining.add(shard)

    def _held_by(self, shard: str, ticket_id: str) -> Passage | None:
        """Return whose ticket it is, unless the ticket has moved to another shard since."""
        passage = self._flights.get(ticket_id)
        return passage if passage and passage.shard == shard else None

    def _on_shed(self, shard: str, shed: Shed) -> None:
        passage = self._held_by(shard, shed.ticket_id)
        if passage is None:
            self._knocks.hear(shard, shed.ticket_id, shed)
            return
        if shed.failure.reason == DRAINING:
            self._draining.add(shard)
            self._control.apply(passage, passage.flight.queue_lost())
        else:
            error = error_from_failure(shed.failure)
            self._door.shed(passage, shed, error, self._control.now())
            # A shard that started a moment ago has not heard of every model yet.
            is_new_there = error.reason == "MODEL_UNKNOWN" and self._catalog.knows(passage.flight.model)
            is_passing = is_new_there or error.reason == SUSPECT
            self._control.apply(passage, passage.flight.shed(error, self._control.now(), is_passing=is_passing))
