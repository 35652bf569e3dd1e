"""Whom somebody would refuse who knows how long each answer is."""

from dataclasses import replace

import pytest

from penstock.proofs.simulated.clairvoyant import clairvoyant_rejections
from penstock.proofs.simulated.scenarios import WORKER, chat_tenant, proof_scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson

TTFT = 1.0  # s


def asked(rate, duration=8.0):
    return (
        Simulation(proof_scenario("oracle", chat_tenant(Poisson(rate)), policy="fair", duration=duration))
        .run()
        .ledger.requests
    )


def test_nobody_is_refused_whom_an_engine_can_serve():
    assert clairvoyant_rejections(asked(8.0), WORKER, TTFT) == []


def test_who_cannot_be_in_time_however_empty_the_engine_is_is_refused():
    slow = replace(WORKER, law=replace(WORKER.step_time, base_s=2.0))
    requests = asked(2.0)
    assert clairvoyant_rejections(requests, slow, TTFT) == requests


@pytest.mark.parametrize("rate", [32.0, 96.0])
def test_about_as_many_are_let_in_as_an_engine_can_serve_however_many_come(rate):
    requests = asked(rate)
    let_in = len(requests) - len(clairvoyant_rejections(requests, WORKER, TTFT))
    assert 10 * 8 < let_in < 30 * 8


def test_much_more_time_lets_more_in():
    requests = asked(48.0)
    assert len(clairvoyant_rejections(requests, WORKER, 3.0)) < len(clairvoyant_rejections(requests, WORKER, 0.2))
