"""CPU wait of processes, which shows that a host had no free core."""

import os

import pytest

from penstock.bench.cpu_wait import CpuUse, cpu_use_of


def test_a_process_that_computes_has_run_for_longer():
    before = cpu_use_of([os.getpid()])
    sum(range(2_000_000))
    after = cpu_use_of([os.getpid()])
    assert after.ran_s > before.ran_s
    assert after.waited_s >= before.waited_s


def test_a_ratio_is_that_of_the_measured_period():
    use = CpuUse(ran_s=12.0, waited_s=9.0).since(CpuUse(ran_s=10.0, waited_s=8.0))
    assert (use.waited_per_ran, use.wait_share) == (0.5, pytest.approx(1 / 3))


def test_a_process_that_has_ended_has_no_cpu_use():
    assert cpu_use_of([2**22 + 1]) == CpuUse(0.0, 0.0)
