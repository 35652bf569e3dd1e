"""From a changed list of edges to a published snapshot."""

import asyncio

import pytest

from penstock.chassis.lifecycle import background
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Address, InvalidEdge
from penstock.routing.reconciler import Reconciler
from penstock.routing.resources.build import ProxyConfig
from penstock.routing.resources.types import ResourceType

FRONT = ProxyConfig(listen=Address("127.0.0.1", 8080))
ONE, TWO = "10.0.0.1:1/10.0.0.1:2", "10.0.0.2:1/10.0.0.2:2;draining"


@pytest.fixture
def listed(tmp_path):
    file = tmp_path / "edges"
    file.write_text(ONE)
    return file


async def begin(listed):
    return await Reconciler.start(FRONT, EdgeDiscovery(f"file://{listed}"))


async def test_a_changed_list_is_published_and_an_unchanged_one_is_not(listed):
    rollout = await begin(listed)
    first = rollout.cache.snapshot
    await rollout.reconcile()
    assert rollout.cache.snapshot is first
    listed.write_text(f"{ONE}\n{TWO}\n")
    await rollout.reconcile()
    assert rollout.cache.snapshot.versions[ResourceType.ENDPOINT] != first.versions[ResourceType.ENDPOINT]
    assert rollout.figures() == {"edges": 2, "edges_draining": 1, "xds_streams": 0}


async def test_the_same_edges_in_another_order_are_no_change(listed):
    listed.write_text(f"{ONE}\n{TWO}\n")
    rollout = await begin(listed)
    first = rollout.cache.snapshot
    listed.write_text(f"{TWO}\n{ONE}\n")
    await rollout.reconcile()
    assert rollout.cache.snapshot is first


class WatchedDirectory(EdgeDiscovery):
    """Tells when it has refused a list."""

    async def look(self):
        try:
            return await EdgeDiscovery.poll(self)
        except InvalidEdge:
            self.refused.set()
            raise


async def test_a_list_nobody_can_read_changes_nothing_and_the_next_good_one_counts(listed):
    directory = WatchedDirectory(f"file://{listed}")
    directory.refused = asyncio.Event()
    rollout = await Reconciler.start(FRONT, directory)
    first = rollout.cache.snapshot
    with rollout.cache.watch() as bell:
        async with background(rollout.run(interval_s=0.001)):
            listed.write_text("nonsense")
            await directory.refused.wait()
            assert rollout.cache.snapshot is first
            listed.write_text(TWO)
            await bell.wait()
    assert {str(edge.grpc) for edge in rollout.edges} == {"10.0.0.2:1"}


async def test_without_a_list_there_is_no_start(tmp_path):
    with pytest.raises(OSError, match="edges"):
        await begin(tmp_path / "edges")
