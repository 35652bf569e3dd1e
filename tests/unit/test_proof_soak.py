"""Growth of memory by a line through all samples, so that no single sample decides."""

import random

import pytest

from penstock.bench.statistics import fit_slope
from penstock.proofs.live.soak import MAX_GROWTH_PERCENT, ResourceSamples, growth_lines

BYTES_PER_MIB = 2**20


def samples_of(memory, descriptors=None, each=1_000):
    """`each`: requests between two samples."""
    made = range(each, each * len(memory) + 1, each)
    cpu = [0.01 * at for at in made]
    return ResourceSamples(
        requests_sent=list(made), memory_bytes=memory, descriptors=descriptors or [20] * len(memory), cpu_s=cpu
    )


def line_of(found, figure):
    return next(line for line in growth_lines(found) if line.figure.startswith(figure))


def test_the_slope_of_points_on_a_line_is_exact():
    assert fit_slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx((2.0, 0.0))


def test_the_standard_error_follows_its_definition():
    # residuals -0.5, 1.0, -0.5; 1.5 left over one degree of freedom, a spread of x of 2
    assert fit_slope([0, 1, 2], [0, 2, 1]) == pytest.approx((0.5, (1.5 / 2) ** 0.5))


@pytest.mark.parametrize("x", [[], [1], [1, 2], [3, 3, 3]])
def test_too_few_samples_have_a_slope_of_zero(x):
    assert fit_slope(x, x) == (0.0, 0.0)


def test_memory_that_grows_only_in_the_warm_up_has_not_grown():
    memory = [100 * BYTES_PER_MIB] * 10 + [150 * BYTES_PER_MIB] * 50
    assert line_of({"edge-1": samples_of(memory)}, "growth of").measured == 0.0


def test_a_leak_is_judged_by_its_growth_over_the_rest_of_the_run():
    memory = [100 * BYTES_PER_MIB + number * BYTES_PER_MIB for number in range(60)]
    found = {"edge-1": samples_of(memory, each=1_000), "auth": samples_of([50 * BYTES_PER_MIB] * 60, each=1_000)}
    line = line_of(found, "growth beyond")
    assert line.measured == pytest.approx(100 * 35 / 124)
    assert not line.is_met
    assert line_of(found, "its standard error").measured == pytest.approx(0.0)


def test_growth_of_caches_is_no_leak_in_a_short_run_but_in_a_long_one():
    memory = [50 * BYTES_PER_MIB + 1_000 * 300 * number for number in range(60)]
    assert line_of({"auth": samples_of(memory, each=300)}, "growth of").measured > MAX_GROWTH_PERCENT
    assert line_of({"auth": samples_of(memory, each=300)}, "growth beyond").measured == 0.0
    assert not line_of({"auth": samples_of([3 * each for each in memory], each=900)}, "growth beyond").is_met


def test_one_large_last_sample_is_no_leak():
    rng = random.Random(1)
    memory = [100 * BYTES_PER_MIB + rng.randrange(BYTES_PER_MIB) for _ in range(59)] + [106 * BYTES_PER_MIB]
    line = line_of({"worker-1": samples_of(memory)}, "growth beyond")
    assert line.measured < MAX_GROWTH_PERCENT / 2
    assert line.is_met


def test_cpu_is_reported_per_request():
    assert line_of(
        {"edge-1": samples_of([BYTES_PER_MIB] * 60), "auth": samples_of([BYTES_PER_MIB] * 60)}, "CPU"
    ).measured == pytest.approx(20)


@pytest.mark.parametrize(
    ("descriptors", "more"),
    [
        ([20] * 10 + [22] * 50, 0),  # opened in the warm-up, when a process connects to its peers
        ([20] * 55 + [21, 20, 21, 20, 20], 0),  # the sampling itself holds one for a moment
        ([20] * 40 + [21] * 20, 1),
    ],
)
def test_a_leaked_descriptor_is_open_in_every_last_sample(descriptors, more):
    assert line_of({"auth": samples_of([BYTES_PER_MIB] * 60, descriptors)}, "descriptors").measured == more
