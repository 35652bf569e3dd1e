"""A tenant within its share next to one that demands ten times its share, with real cores in virtual time."""

from dataclasses import replace
from statistics import mean, median

from penstock.bench.statistics import quantile
from penstock.proofs.simulated.scenarios import FIFO_CAPACITY_RPS, chat_tenant, proof_scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.worker.engine.batching import policy

SEEDS = 4  # one alone has 109 requests, whose P99 is that of the second slowest and of whom it met
NOTICED = (
    1.4  # times the P99 alone: 1.6 where no slot is kept, 2.5 where nobody goes first; the card judges by more runs
)

QUIET, LOUD = chat_tenant(Poisson(FIFO_CAPACITY_RPS / 4), "quiet"), chat_tenant(Poisson(5 * FIFO_CAPACITY_RPS), "loud")


def first_tokens(*tenants, reserve_share=1 / 16, seed=0):
    """The TTFTs of the light tenant in s."""
    asked = proof_scenario("isolation", *tenants, seed=seed, duration=30.0, warm_up=5.0)
    asked = replace(asked, schedulers=replace(asked.schedulers, express_slot_share=reserve_share))
    found = [each.transcript for each in Simulation(asked).run().ledger.requests if each.tenant is QUIET]
    return [each.ttft for each in found if each.ttft is not None and each.started_at > asked.warm_up]


def p99(firsts):
    return quantile(firsts, 0.99)


def test_a_light_tenant_is_hardly_delayed_by_a_heavy_one():
    beside, alone = (
        [each for seed in range(SEEDS) for each in first_tokens(*tenants, seed=seed)]
        for tenants in ((QUIET, LOUD), (QUIET,))
    )
    assert 1.0 <= p99(beside) / p99(alone) <= NOTICED


def test_a_light_tenant_is_not_rejected_for_commitments_to_a_heavy_one():
    assert len(first_tokens(QUIET, LOUD)) >= 0.99 * len(first_tokens(QUIET))


def test_without_express_slots_a_light_tenant_waits_for_slots():
    kept, not_kept = first_tokens(QUIET, LOUD), first_tokens(QUIET, LOUD, reserve_share=0.0)
    assert 1.5 * median(kept) < median(not_kept)


def test_without_prefill_preemption_heavy_prompts_delay_a_light_tenant(monkeypatch):
    def mean_ttft():
        return mean([each for seed in range(SEEDS) for each in first_tokens(QUIET, LOUD, seed=seed)])

    overtaken = mean_ttft()
    monkeypatch.setattr(policy, "OVERTAKEN_OLDEST_FACTOR", 1.0)
    assert 1.01 * overtaken < mean_ttft()
