"""The reconciler: a changed list of edges becomes a published snapshot."""

import asyncio

import pytest

from door_certificates import CertificateAuthority, CertificateFolder
from penstock.chassis.lifecycle import background
from penstock.routing.door_certificate import DoorCertificate
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Address, InvalidEdge
from penstock.routing.reconciler import Reconciler
from penstock.routing.resources.build import ProxyConfig
from penstock.routing.resources.types import ResourceType

PROXY = ProxyConfig(listen=Address("127.0.0.1", 8080))
ONE, TWO = "10.0.0.1:1/10.0.0.1:2", "10.0.0.2:1/10.0.0.2:2;draining"


@pytest.fixture
def listed(tmp_path):
    file = tmp_path / "edges"
    file.write_text(ONE)
    return file


async def start(listed):
    return await Reconciler.start(PROXY, EdgeDiscovery(f"file://{listed}"))


async def test_a_changed_list_is_published_and_an_unchanged_one_is_not(listed):
    reconciler = await start(listed)
    first = reconciler.cache.snapshot
    await reconciler.reconcile()
    assert reconciler.cache.snapshot is first
    listed.write_text(f"{ONE}\n{TWO}\n")
    await reconciler.reconcile()
    assert reconciler.cache.snapshot.versions[ResourceType.ENDPOINT] != first.versions[ResourceType.ENDPOINT]
    assert reconciler.figures() == {"edges": 2, "edges_draining": 1, "xds_streams": 0}


async def test_a_changed_certificate_is_published_even_if_the_list_of_edges_is_invalid(listed, tmp_path):
    authority, folder = CertificateAuthority(), CertificateFolder(tmp_path)
    folder.write(*authority.issue())
    door = await DoorCertificate.load(folder.certificate, folder.key)
    reconciler = await Reconciler.start(PROXY, EdgeDiscovery(f"file://{listed}"), door)
    first = reconciler.cache.snapshot
    listed.write_text("nonsense")
    folder.write(*authority.issue())
    await reconciler.reconcile()
    second = reconciler.cache.snapshot
    assert [kind for kind in ResourceType if first.versions[kind] != second.versions[kind]] == [ResourceType.SECRET]


async def test_the_same_edges_in_another_order_are_no_change(listed):
    listed.write_text(f"{ONE}\n{TWO}\n")
    reconciler = await start(listed)
    first = reconciler.cache.snapshot
    listed.write_text(f"{TWO}\n{ONE}\n")
    await reconciler.reconcile()
    assert reconciler.cache.snapshot is first


class WatchedDiscovery(EdgeDiscovery):
    """Sets an event when it has rejected a list."""

    async def poll(self):
        try:
            return await EdgeDiscovery.poll(self)
        except InvalidEdge:
            self.rejected.set()
            raise


async def test_an_invalid_list_changes_nothing_and_the_next_valid_one_is_published(listed):
    discovery = WatchedDiscovery(f"file://{listed}")
    discovery.rejected = asyncio.Event()
    reconciler = await Reconciler.start(PROXY, discovery)
    first = reconciler.cache.snapshot
    with reconciler.cache.watch() as changed:
        async with background(reconciler.run(interval_s=0.001)):
            listed.write_text("nonsense")
            await discovery.rejected.wait()
            assert reconciler.cache.snapshot is first
            listed.write_text(TWO)
            await changed.wait()
    assert {str(edge.grpc) for edge in reconciler.edges} == {"10.0.0.2:1"}


async def test_without_a_list_there_is_no_start(tmp_path):
    with pytest.raises(OSError, match="edges"):
        await start(tmp_path / "edges")
