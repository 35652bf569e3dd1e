"""Rejections of a clairvoyant admission that knows the length of each answer."""

from dataclasses import replace

import pytest

from penstock.proofs.simulated.clairvoyant import clairvoyant_rejections
from penstock.proofs.simulated.scenarios import WORKER, chat_tenant, proof_scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson

TTFT_TARGET_S = 1.0


def requests_at(rate, duration=8.0):
    return (
        Simulation(proof_scenario("oracle", chat_tenant(Poisson(rate)), policy="fair", duration=duration))
        .run()
        .ledger.requests
    )


def test_no_request_is_rejected_that_an_engine_can_serve():
    assert clairvoyant_rejections(requests_at(8.0), WORKER, TTFT_TARGET_S) == []


def test_a_request_that_is_late_even_on_an_idle_engine_is_rejected():
    slow = replace(WORKER, step_time=replace(WORKER.step_time, base_s=2.0))
    requests = requests_at(2.0)
    assert clairvoyant_rejections(requests, slow, TTFT_TARGET_S) == requests


@pytest.mark.parametrize("rate", [32.0, 96.0])
def test_admissions_match_the_engines_capacity_at_any_load(rate):
    requests = requests_at(rate)
    admitted = len(requests) - len(clairvoyant_rejections(requests, WORKER, TTFT_TARGET_S))
    assert 10 * 8 < admitted < 30 * 8


def test_more_workers_reject_fewer_requests():
    requests = requests_at(64.0)
    rejected = [len(clairvoyant_rejections(requests, WORKER, TTFT_TARGET_S, workers)) for workers in (1, 2, 5)]
    assert rejected[0] > 1.5 * rejected[1]
    assert rejected[2] == 0


def test_a_request_waits_while_no_kv_blocks_are_free():
    requests = requests_at(16.0)
    few_blocks = replace(
        WORKER, kv_blocks=max(-(-(each.prompt_tokens + each.output_tokens) // 16) for each in requests)
    )
    rejected = clairvoyant_rejections(requests, few_blocks, TTFT_TARGET_S)
    assert 0 < len(rejected) < len(requests)


def test_a_longer_target_admits_more():
    requests = requests_at(48.0)
    assert len(clairvoyant_rejections(requests, WORKER, 3.0)) < len(clairvoyant_rejections(requests, WORKER, 0.2))
