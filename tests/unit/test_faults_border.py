"""The simulated network between regions: a longer way, cuts in one direction, and doors that lead to living edges."""

import asyncio

import pytest
from grpc import ChannelConnectivity as Connectivity

from penstock.faults.grpc.fake_channel import FakeChannel
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, MessageStream
from penstock.faults.regions.border import BorderNetwork, Direction
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

DOOR, FIRST, SECOND = "127.0.0.1:99", "127.0.0.1:1", "127.0.0.1:2"
TRIP_S = 0.1
TIME_LIMIT_S = 20.0
AWAY, BACK = Direction("eu", "us"), Direction("us", "eu")


class Border:
    """A process of one region, with a channel to the door of a region with two edges."""

    def __init__(self):
        self.world = World(1)
        self.network = BorderNetwork(self.world, 1, late_share=0.0, trip_s=TRIP_S, doors={DOOR: (FIRST, SECOND)})
        self.home = self.world.add_loop("eu-edge0")
        self.edges = [self._serve("us-edge0", FIRST), self._serve("us-edge1", SECOND)]
        with self.world.running_as(self.home):
            self.channel = FakeChannel(self.network, self.home, DOOR)
        self.world.settle()

    def _serve(self, name, address):
        loop = self.world.add_loop(name)
        server = FakeServer(self.network, loop, ())
        server.add_insecure_port(address)
        with self.world.running_as(loop):
            loop.create_task(server.start())
        return loop

    def connect(self):
        with self.world.running_as(self.home):
            self.channel.get_state(try_to_connect=True)
        assert self.world.run(lambda: self.state is Connectivity.READY, limit=self.world.now + TIME_LIMIT_S)
        return self.network.connections[-1]

    def pass_by(self, seconds):
        self.world.run(lambda: False, limit=self.world.now + seconds)

    @property
    def state(self):
        return self.channel.get_state()


@pytest.fixture
def border():
    made = Border()
    yield made
    asyncio._set_running_loop(None)  # a world has set it


def test_a_message_to_another_region_takes_the_trip(border):
    connection, received = border.connect(), []
    assert border.world.now > 2 * TRIP_S  # there and back
    border.network.deliver(MessageStream(connection), TO_SERVER, received.append, 1)
    border.pass_by(0.9 * TRIP_S)
    assert received == []
    border.pass_by(0.2 * TRIP_S)
    assert received == [1]


def test_a_cut_of_one_direction_holds_back_its_messages_alone(border):
    connection, there, back = border.connect(), [], []
    border.network.cut(AWAY, 1.0)
    border.network.deliver(MessageStream(connection), TO_SERVER, there.append, 1)
    border.network.deliver(MessageStream(connection), TO_CLIENT, back.append, 1)
    border.pass_by(0.9)
    assert (there, back) == ([], [1])
    border.pass_by(0.2)
    assert there == [1]


def test_a_loss_is_reported_across_a_cut_when_it_heals(border):
    connection = border.connect()
    border.network.cut(BACK, 1.0)
    border.network.reset(connection)
    border.pass_by(0.9)
    assert border.state is Connectivity.READY
    border.pass_by(0.3)
    assert border.state is Connectivity.IDLE
    assert border.network.connections == []


def test_a_cut_longer_than_the_ping_timeout_is_detected_before_it_heals(border):
    border.connect()
    border.network.cut(AWAY, 5.0)
    border.pass_by(3.0)
    assert border.state is Connectivity.IDLE


def test_nothing_connects_through_a_cut(border):
    border.network.cut(AWAY, 1.0)
    border.connect()
    assert border.world.now > 1.0


def test_a_slow_link_adds_its_delay_until_it_ends(border):
    connection, received = border.connect(), []
    border.network.slow_down(AWAY, 0.5, 1.0)
    border.network.deliver(MessageStream(connection), TO_SERVER, received.append, 1)
    border.pass_by(0.5)
    assert received == []
    border.pass_by(0.2)
    assert received == [1]
    border.pass_by(0.5)
    border.network.deliver(MessageStream(connection), TO_SERVER, received.append, 2)
    border.pass_by(0.2)
    assert received == [1, 2]


def test_a_door_leads_to_its_edges_in_turn_and_not_to_dead_ones(border):
    assert border.connect().loops[TO_SERVER] is border.edges[0]
    border.network.reset(border.network.connections[-1])
    border.pass_by(0.5)
    assert border.connect().loops[TO_SERVER] is border.edges[1]
    border.network.on_process_died(border.edges[0])
    border.network.reset(border.network.connections[-1])
    border.pass_by(0.5)
    assert border.connect().loops[TO_SERVER] is border.edges[1]
