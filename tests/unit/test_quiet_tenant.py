"""A tenant inside its share beside one that asks for ten times its own, with real cores on virtual time."""

from dataclasses import replace

import pytest

from penstock.cli.bench.report import quantile
from penstock.cli.scorecard.worlds import RATE, chat, world
from penstock.simulator.arrivals import Poisson
from penstock.simulator.simulation import Simulation

QUIET, LOUD = chat(Poisson(RATE / 4), "quiet"), chat(Poisson(5 * RATE), "loud")


def first_tokens(*tenants, reserve_share=1 / 16):
    """P99 of the quiet tenant's times to the first token, in s."""
    asked = world("isolation", *tenants, duration=30.0, warm_up=5.0)
    asked = replace(asked, schedulers=replace(asked.schedulers, reserve_share=reserve_share))
    found = [each.history for each in Simulation(asked).run().ledger.requests if each.tenant is QUIET]
    return quantile([each.ttft for each in found if each.ttft is not None and each.started > asked.warm_up], 0.99)


@pytest.mark.parametrize(("reserve_share", "slower"), [(1 / 16, (1.0, 1.4)), (0.0, (1.4, 3.0))])
def test_a_quiet_tenant_hardly_notices_a_loud_one_where_slots_are_kept_for_it(reserve_share, slower):
    beside = first_tokens(QUIET, LOUD, reserve_share=reserve_share)
    least, most = slower
    assert least <= beside / first_tokens(QUIET) <= most
