"""Times on a host without free cores are the host's: the card tells how much of them is."""

import os

from penstock.proofs.checks.cpu_wait import OnCores, spent


def test_a_process_that_computes_is_on_a_core_for_longer_and_no_less_without_one():
    before = spent([os.getpid()])
    sum(range(2_000_000))
    after = spent([os.getpid()])
    assert after.ran > before.ran
    assert after.waited >= before.waited


def test_what_is_told_is_of_the_stretch_alone():
    line = OnCores(ran=12.0, waited=9.0).since(OnCores(ran=10.0, waited=8.0))
    assert (line.measured, line.goal) == (0.5, "")


def test_a_process_that_is_gone_waits_for_nothing():
    assert spent([2**22 + 1]) == OnCores(0.0, 0.0)
