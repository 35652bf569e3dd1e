"""Times on a host without free cores are the host's: the card tells how much of them is."""

import os

from penstock.proofs.checks.cpu_wait import CpuWait, cpu_wait_of


def test_a_process_that_computes_is_on_a_core_for_longer_and_no_less_without_one():
    before = cpu_wait_of([os.getpid()])
    sum(range(2_000_000))
    after = cpu_wait_of([os.getpid()])
    assert after.ran_s > before.ran_s
    assert after.waited_s >= before.waited_s


def test_what_is_told_is_of_the_stretch_alone():
    line = CpuWait(ran_s=12.0, waited_s=9.0).ratio_line(CpuWait(ran_s=10.0, waited_s=8.0))
    assert (line.measured, line.goal) == (0.5, "")


def test_a_process_that_is_gone_waits_for_nothing():
    assert cpu_wait_of([2**22 + 1]) == CpuWait(0.0, 0.0)
