"""A shard and a scheduler in the initial state of most tests."""

import pytest

from dispatch_mesh import LEASE_TTL_S
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from queue_tickets import ShardDriver


@pytest.fixture
def shard():
    """One scheduler, no ticket."""
    shard = ShardDriver()
    shard.connect()
    return shard


@pytest.fixture
def scheduler():
    """One shard, no worker."""
    dispatcher = Dispatcher(leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"), look_ahead=0)
    dispatcher.on_queue_connected("q")
    return dispatcher
