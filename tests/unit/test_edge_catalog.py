"""Errors for a model that the edge cannot find."""

import pytest

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import Unavailable
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.text.executor import TokenizerPools
from penstock.mesh.v1.queue_pb2 import Catalog as CatalogFrame
from penstock.mesh.v1.ticket_pb2 import CatalogEntry

ENTRY = CatalogEntry(model="tiny", card_digest="d1", worker_address="127.0.0.1:1", workers_hint=1)


@pytest.mark.parametrize(
    ("catalogs", "reason", "text"),
    [
        ([None], "QUEUE_LOST", "no queue can be reached; retry in a moment"),
        ([[], None], "QUEUE_LOST", "no queue can be reached; retry in a moment"),
        ([[], None, []], "NO_WORKER", "no worker serves any model at present; retry in a moment"),
        ([[]], "NO_WORKER", "no worker serves any model at present; retry in a moment"),
        ([[ENTRY]], "NO_WORKER", "the card of tiny cannot be fetched; retry in a moment"),
        ([[ENTRY], None], "NO_WORKER", "the card of tiny cannot be fetched; retry in a moment"),
    ],
)
async def test_the_error_names_the_cause_and_the_time_to_retry(catalogs, reason, text):
    with TokenizerPools(1) as threads:
        catalog = ModelCatalog(WallMonotonicClock(), threads, wait_timeout=0.0)
        for entries in catalogs:
            if entries is None:
                catalog.on_shard_unreachable("shard")
            else:
                catalog.on_catalog("shard", CatalogFrame(entries=entries))
        with pytest.raises(Unavailable) as failure:
            await catalog.find("tiny")
    assert (failure.value.reason, failure.value.message, failure.value.retry_after) == (reason, text, 1.0)
