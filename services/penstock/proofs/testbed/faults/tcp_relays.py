"""TCP relays in place of every connection of a local mesh, each of which can be cut in one or both directions."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.local_mesh.plan import MeshPlan, ProcessSpec
from penstock.local_mesh.tcp_relay import RelayEnds, TcpRelay

CLIENTS = "clients"
PEER_SETTINGS = ("QUEUES", "SCHEDULERS", "AUTHS")  # settings with the addresses that a process connects to
ADVERTISING_TIER = "worker"  # the tier that advertises its address; one relay carries all connections to a worker


class TcpRelays:
    """All relays of one mesh, after `insert_relays` has seen its plan; they listen until `stack` closes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.all: list[TcpRelay] = []
        self._stack = stack
        self._planned_addresses: set[str] = set()

    def between(self, client: str, server: str) -> list[TcpRelay]:
        """Return the relays between processes of two tiers, or between clients and a tier."""
        return [
            each for each in self.all if (_tier_of(each.ends.client), _tier_of(each.ends.server)) == (client, server)
        ]

    @property
    def client_addresses(self) -> list[str]:
        """Addresses at which clients reach the edges."""
        return [each.address for each in self.between(CLIENTS, "edge")]

    async def insert_relays(self, plan: MeshPlan) -> MeshPlan:
        """Insert a relay into every connection that the settings of `plan` name, and before each edge and worker."""
        names = {each.address: each.name for each in plan.processes}
        self._planned_addresses = {
            address for each in plan.processes for address in (each.address, each.http, each.admin)
        }
        for edge in plan.processes_of("edge"):
            await self._open_relay(RelayEnds(CLIENTS, edge.name), edge.address)
        return replace(plan, processes=tuple([await self._with_relays(each, names) for each in plan.processes]))

    async def _with_relays(self, spec: ProcessSpec, names: Mapping[str, str]) -> ProcessSpec:
        settings = dict(spec.environment)
        prefix = f"PENSTOCK_{spec.tier.upper()}_"
        for name in (prefix + peers for peers in PEER_SETTINGS):
            if name in settings:
                relays = [
                    await self._open_relay(RelayEnds(spec.name, names[each]), each)
                    for each in settings[name].split(",")
                ]
                settings[name] = ",".join(relay.address for relay in relays)
        if spec.tier == ADVERTISING_TIER:
            relay = await self._open_relay(RelayEnds("edge", spec.name), spec.address)
            settings[prefix + "ADVERTISE"] = relay.address
        return replace(spec, environment=settings)

    async def _open_relay(self, ends: RelayEnds, target: str) -> TcpRelay:
        """Open a relay at a port that no process of the plan will use."""
        while True:
            async with AsyncExitStack() as opened:
                relay = TcpRelay(ends, target)
                await opened.enter_async_context(relay.listening())
                if relay.address not in self._planned_addresses:
                    self._stack.push_async_callback(opened.pop_all().aclose)
                    self.all.append(relay)
                    return relay


def _tier_of(name: str) -> str:
    return name.partition("-")[0]
