"""The simulated network: both sides are notified of resets, partitions and closes, in order."""

import asyncio

import pytest
from grpc import ChannelConnectivity as Connectivity

from penstock.faults.grpc.fake_channel import FakeChannel
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, MessageStream, Network
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

ADDRESS = "127.0.0.1:1"
TIME_LIMIT_S = 20.0


class Mesh:
    """One client with a channel to one server."""

    def __init__(self):
        self.world = World(1)
        self.network = Network(self.world, 1, late_share=0.0)
        self.client, self.host = self.world.add_loop("a"), self.world.add_loop("b")
        self.names = frozenset({"a", "b"})
        self.server = FakeServer(self.network, self.host, ())
        self.server.add_insecure_port(ADDRESS)
        with self.world.running_as(self.host):
            self.host.create_task(self.server.start())
        with self.world.running_as(self.client):
            self.channel = FakeChannel(self.network, self.client, ADDRESS)
        self.world.settle()

    def connect(self, until=lambda mesh: mesh.state is Connectivity.READY):
        with self.world.running_as(self.client):
            self.channel.get_state(try_to_connect=True)
        assert self.world.run(lambda: until(self), limit=TIME_LIMIT_S)
        return self.network.connections[0]

    def pass_by(self, seconds):
        self.world.run(lambda: False, limit=self.world.now + seconds)

    @property
    def state(self):
        return self.channel.get_state()

    @property
    def server_connections(self):
        """Number of connections that the server knows."""
        return len(self.server._connection_sides)

    @property
    def failures(self):
        return self.client.failures + self.host.failures


@pytest.fixture
def mesh():
    made = Mesh()
    yield made
    asyncio._set_running_loop(None)  # a world has set it


def test_a_reset_during_a_partition_is_reported_to_both_sides(mesh):
    """Seed 40082: one side continued for ever with calls that never reached the other side."""
    connection = mesh.connect()
    mesh.network.partition(mesh.names, 1.0)
    mesh.network.reset(connection)
    mesh.pass_by(0.9)
    assert (mesh.state, mesh.server_connections) == (Connectivity.READY, 1)
    mesh.pass_by(0.2)
    assert (mesh.state, mesh.server_connections) == (Connectivity.IDLE, 0)
    assert mesh.network.connections == []


def test_a_server_that_stops_before_its_client_is_connected_accepts_no_call(mesh):
    """Seed 40168: the stop was reported to no side of the connection."""
    mesh.connect(until=lambda mesh: mesh.server_connections == 1)
    assert mesh.state is Connectivity.CONNECTING
    with mesh.world.running_as(mesh.host):
        mesh.host.create_task(mesh.server.stop(None))
    mesh.pass_by(1.0)
    assert mesh.state is Connectivity.IDLE
    assert mesh.failures == []


def test_a_close_during_a_partition_is_reported_afterwards(mesh):
    mesh.connect()
    mesh.network.partition(mesh.names, 1.0)
    with mesh.world.running_as(mesh.host):
        mesh.host.create_task(mesh.server.stop(None))
    mesh.pass_by(0.9)
    assert mesh.state is Connectivity.READY
    mesh.pass_by(0.2)
    assert mesh.state is Connectivity.IDLE


def test_a_partition_longer_than_the_ping_timeout_is_detected_before_it_heals(mesh):
    mesh.connect()
    mesh.network.partition(mesh.names, 4.0)
    mesh.pass_by(3.0)
    assert mesh.state is Connectivity.IDLE
    assert mesh.server_connections == 1
    mesh.pass_by(2.0)
    assert mesh.server_connections == 0


def test_messages_that_a_partition_delayed_arrive_in_order(mesh):
    connection, received = mesh.connect(), []
    stream = MessageStream(connection)
    for number in range(3):
        mesh.network.deliver(stream, TO_SERVER, received.append, number)
    mesh.network.partition(mesh.names, 1.0)
    mesh.pass_by(0.5)
    for number in range(3, 6):
        mesh.network.deliver(stream, TO_SERVER, received.append, number)
    mesh.pass_by(0.4)
    assert received == []
    mesh.pass_by(1.0)
    assert received == list(range(6))


def test_nothing_arrives_on_a_connection_that_was_reset(mesh):
    connection, received = mesh.connect(), []
    mesh.network.deliver(MessageStream(connection), TO_CLIENT, received.append, 1)
    mesh.network.reset(connection)
    mesh.pass_by(1.0)
    assert received == []
    assert mesh.state is Connectivity.IDLE


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_waits_for_a_server_if_it_is_told_to(waits):
    world = World(1)
    network, client = Network(world, 1, late_share=0.0), world.add_loop("a")
    with world.running_as(client):
        call = FakeChannel(network, client, ADDRESS).unary_unary("/S/M", bytes, bytes)(b"", wait_for_ready=waits)
    world.run(call.done, limit=1.0)
    assert call.done() is not waits
    server = FakeServer(network, host := world.add_loop("b"), ())
    server.add_insecure_port(ADDRESS)
    with world.running_as(host):
        host.create_task(server.start())
    world.run(lambda: bool(network.connections), limit=TIME_LIMIT_S)
    asyncio._set_running_loop(None)
    assert bool(network.connections) is waits
