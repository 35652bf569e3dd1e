"""Client of other regions: offers the requests that the queue rejects, if they may leave."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping

from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.regions.connection import RegionConnection, offer_class
from penstock.edge.regions.spill import OfferClass, SpillPolicy
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.stream_pb2 import Hello

# Returns the regions that the tenant of a caller allows; None if auth has not said so, for which its requests stay.
AllowedRegions = Callable[[Identity], Collection[str] | None]


def no_regions(_: Identity) -> None:
    """All requests stay."""


class RegionClient:
    """One stream to each other region. Requests of sessions and single calls may leave, one by one."""

    def __init__(
        self,
        doors: Mapping[str, str],
        hello: Hello,
        runner: EffectRunner,
        allowed_regions: AllowedRegions,
        *,
        stay: Collection[int] = (),
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        """doors: address of the region door by region, in order of preference. stay: priorities that do not leave."""
        self._runner = runner
        self._allowed_regions = allowed_regions
        self._policy = SpillPolicy(doors, stay=stay)
        self._connections = {
            region: RegionConnection(region, address, hello, runner, self._policy, dialer=dialer)
            for region, address in doors.items()
        }

    @property
    def links_up(self) -> int:
        return sum(each.is_up for each in self._connections.values())

    @property
    def runs(self) -> Iterator[tuple[str, int]]:
        """Requests that are offered to each region or run there."""
        return ((region, each.runs) for region, each in self._connections.items())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for region, connection in self._connections.items():
                group.create_task(connection.run(), name=f"region {region}")

    def can_spill(self, credential: Credential, identity: Identity, model_key: str) -> bool:
        """Return whether another region may take a request that the queue would reject."""
        if credential.delegation:
            return False
        offered = OfferClass(model_key, identity.priority)
        return self._policy.can_spill(offered, self._allowed_regions(identity), self._runner.now())

    def offer(self, context: RequestContext) -> None:
        """Offer a request to the next region. It ends in the rejection of the queue if none is left."""
        if context.run:  # of an offer that was not answered in time
            self._connections[context.request.offered_to[-1]].on_unanswered(context)
            context.run.discard()
            context.run = None
        context.shard = ""
        while region := self._next_region(context):
            if self._connections[region].offer(context):
                return
            self._policy.on_down(region)
        self._runner.apply(context, context.request.on_no_region())

    def _next_region(self, context: RequestContext) -> str | None:
        """Return the next region for a request. Lines of batches, embeddings and guests stay."""
        request = context.request
        if context.credential.delegation or request.plan.embedding_size or context.away_nanos:
            return None
        now = self._runner.now()
        return self._policy.choose(
            offer_class(context),
            self._allowed_regions(request.identity),
            tried=request.offered_to,
            time_left=request.deadline - now,
            now=now,
        )
