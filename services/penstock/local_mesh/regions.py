"""Whole meshes as regions on this machine, whose doors for other regions are joined by relays with a delay."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from types import MappingProxyType

from penstock.chassis.config import check_region
from penstock.local_mesh.launch import MeshSecrets, ignore_status, local_mesh
from penstock.local_mesh.mesh import LocalMesh, ProcessStatusFn
from penstock.local_mesh.plan import REGION_DOOR_PORT, REGION_LINK_PORT, MeshOptions, local_address
from penstock.local_mesh.ports import PORT_SPAN, reserved_base_port
from penstock.local_mesh.state import write_state
from penstock.local_mesh.tcp_relay import CutDirection, RelayEnds, TcpRelay

ROUND_TRIP_S = 0.04  # between two regions
MAX_REGIONS = 4
MAX_NAME_CHARS = 32  # leaves room for the name of a process in an instance id


@dataclass(frozen=True, slots=True)
class LocalRegions:
    """The meshes by region, in the order of their names in `local_regions`, and the links between them."""

    meshes: dict[str, LocalMesh]
    links: dict[tuple[str, str], TcpRelay]  # by the region that connects and the region whose door it connects to

    async def kill(self, region: str) -> None:
        """Kill every process of `region` at once."""
        await self.meshes[region].kill()

    async def restart(self, region: str, on_status: ProcessStatusFn = ignore_status) -> None:
        """Restart a killed region; wait and raise as at the start of a mesh."""
        mesh = self.meshes[region]
        await mesh.restart_all(on_status)
        write_state(mesh.state())

    def cut(self, one: str, other: str, direction: CutDirection = CutDirection.BOTH) -> None:
        """Cut the link of two regions. Connections stay open and are silent.

        `direction` applies to the connections that each of the two has opened.
        """
        for relay in self._links_between(one, other):
            relay.cut(direction)

    def restore(self, one: str, other: str) -> None:
        """Restore the link of two regions; the bytes that wait arrive."""
        for relay in self._links_between(one, other):
            relay.restore()

    def _links_between(self, one: str, other: str) -> tuple[TcpRelay, TcpRelay]:
        return self.links[one, other], self.links[other, one]


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless `names` are of 1 to 4 different regions."""
    if not 0 < len(names) <= MAX_REGIONS or len(set(names)) < len(names):
        raise ValueError(f"name 1 to {MAX_REGIONS} different regions")
    for name in names:
        check_region("a region", name)
        if len(name) > MAX_NAME_CHARS:
            raise ValueError(f"a region has at most {MAX_NAME_CHARS} characters here, which {name!r} has not")


@asynccontextmanager
async def local_regions(
    options: MeshOptions,
    names: Sequence[str],
    on_status: ProcessStatusFn = ignore_status,
    *,
    round_trip_s: float = ROUND_TRIP_S,
    workers: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[LocalRegions]:
    """Run one mesh by `options` for each region for the duration of the block. `workers` are those of single regions.

    The base ports of the regions are `PORT_SPAN` apart, or chosen if `base_port` is 0. All regions accept the same key
    and have one authority. The first one is the home of tenants, and the others follow it. Connections to another
    region's door take `round_trip_s` longer to answer. Raises ValueError if the names are invalid, and otherwise as
    `local_mesh`.
    """
    check_names(names)
    async with AsyncExitStack() as stack:
        bases = {
            name: stack.enter_context(reserved_base_port())
            if options.base_port == 0
            else options.base_port + place * PORT_SPAN
            for place, name in enumerate(names)
        }
        links = await _open_links(stack, bases, round_trip_s)
        meshes, shared = {}, MeshSecrets()
        for name, base_port in bases.items():
            others = tuple(f"{to}={link.address}" for (start, to), link in links.items() if start == name)
            own = replace(options, base_port=base_port, region=name, other_regions=others, home_region=names[0])
            on_status_here = partial(_report_with_region, on_status, name)
            sized = replace(own, workers=workers.get(name, own.workers))
            meshes[name] = await stack.enter_async_context(local_mesh(sized, on_status_here, mesh_secrets=shared))
        yield LocalRegions(meshes, links)


def _report_with_region(on_status: ProcessStatusFn, region: str, name: str, status: str) -> None:
    on_status(f"{region} {name}", status)


async def _open_links(
    stack: AsyncExitStack, bases: dict[str, int], round_trip_s: float
) -> dict[tuple[str, str], TcpRelay]:
    """Open a relay for each ordered pair of regions, at a port of the region that connects."""
    links, places = {}, list(bases)
    for start, to in permutations(bases, 2):
        door = local_address(bases[to], REGION_DOOR_PORT)
        link = TcpRelay(RelayEnds(start, to), door, delay_s=round_trip_s / 2)
        _, _, port = local_address(bases[start], REGION_LINK_PORT, places.index(to)).rpartition(":")
        await stack.enter_async_context(link.listening(int(port)))
        links[start, to] = link
    return links
