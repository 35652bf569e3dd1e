"""Which traces are recorded, decided at their head and at their end."""

import random

import pytest

from penstock.chassis.observability.sampling import (
    BURST,
    FIRST_WINDOW,
    KEPT_PER_S,
    MAX_DECISIONS,
    HeadSampler,
    SamplerInvalid,
    TailSampler,
)

SAMPLED_PARENT, UNSAMPLED_PARENT = (f"00-{'a' * 32}-{'b' * 16}-{flags}" for flags in ("01", "00"))
LOW, HIGH = "f" * 18 + "0" * 14, "0" * 18 + "f" * 14  # only the last 14 digits of a trace id must be random


def traceparent(number):
    return f"00-{number:032x}-{'b' * 16}-00"


@pytest.mark.parametrize(
    ("environ", "low", "high", "below_sampled", "below_unsampled"),
    [
        ({}, "01", "01", "01", "00"),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, "00", "00", "01", "00"),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, "01", "01", "01", "01"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "00", "00", "00", "00"),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
            *("01", "00", "01", "00"),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, "01", "00", "00", "00"),
    ],
)
def test_the_samplers_of_opentelemetry(environ, low, high, below_sampled, below_unsampled):
    sampler = HeadSampler.from_environment(environ)
    flags = [sampler.flags("", LOW), sampler.flags("", HIGH)]
    flags += [sampler.flags(each, "a" * 32) for each in (SAMPLED_PARENT, UNSAMPLED_PARENT)]
    assert flags == [low, high, below_sampled, below_unsampled]


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_SAMPLER": "often"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "few"},
    ],
)
def test_a_sampler_that_does_not_exist_is_refused(environ):
    with pytest.raises(SamplerInvalid, match="OTEL_TRACES_SAMPLER"):
        HeadSampler.from_environment(environ)


def test_the_slowest_one_percent_are_kept_and_few_others():
    rng = random.Random(1)
    durations = [rng.lognormvariate(0, 1) for _ in range(20_000)]
    sampler = TailSampler()
    # One request each second, so that the rate does not bind.
    kept = [sampler.keeps_request(traceparent(i), each, float(i), failed=False) for i, each in enumerate(durations)]
    warm = range(FIRST_WINDOW, len(durations))
    slowest = sorted(warm, key=durations.__getitem__)[-len(durations) // 100 :]
    missed = [i for i in slowest if not kept[i]]
    assert len(missed) <= len(slowest) // 20, "the threshold is an estimate"
    assert sum(kept[i] for i in warm) <= 0.03 * len(durations)


def test_every_error_is_kept_within_the_rate():
    sampler = TailSampler()
    at_once = [sampler.keeps_request(traceparent(i), 0.0, 0.0, failed=True) for i in range(1_000)]
    assert at_once == [True] * int(BURST) + [False] * (1_000 - int(BURST))
    later = [sampler.keeps_request(traceparent(2_000 + i), 0.0, 1.0, failed=True) for i in range(100)]
    assert sum(later) == KEPT_PER_S


def test_errors_do_not_use_the_rate_of_slow_requests():
    sampler = TailSampler()
    for i in range(1_000):
        sampler.keeps_request(traceparent(i), 0.0, 0.0, failed=True)
    assert sampler.keeps_request(traceparent(5_000), 100.0, 0.0, failed=False)


def test_the_span_of_a_call_is_kept_with_its_request():
    sampler = TailSampler()
    assert sampler.keeps_request(traceparent(1), 1.0, 0.0, failed=True)
    assert sampler.keeps_call(traceparent(1), 0.0, failed=False)
    assert not sampler.keeps_call(traceparent(2), 0.0, failed=False)
    assert sampler.keeps_call(traceparent(3), 0.0, failed=True), "an error that never became a request"
    for i in range(1_000):
        sampler.keeps_request(traceparent(10 + i), 0.0, 0.0, failed=True)
    assert not sampler.keeps_call(traceparent(1_009), 0.0, failed=True), "its request was not kept"


def test_decisions_are_bounded():
    sampler = TailSampler()
    for i in range(2 * MAX_DECISIONS):
        sampler.keeps_call(traceparent(i), float(i), failed=True)
    assert len(sampler._decisions) == MAX_DECISIONS
