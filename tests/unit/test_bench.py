"""The load that `penstock bench` offers, and its figures."""

import itertools

import click
import pytest

from penstock.bench.load import BenchLoad, LengthRange
from penstock.bench.report import Slo, report_of
from penstock.bench.statistics import quantile
from penstock.bench.transcript import CANCELLED, OK, Transcript
from penstock.cli.bench import parse_lengths


def transcript(
    number, *, outcome=OK, code="OK", chunks=((0.5, 0, 1), (0.6, 1, 1), (0.7, 2, 1)), usage=None, retry=None
):
    made = Transcript(number, started_at=0.0)
    for now, first_index, count in chunks:
        made.record(now, first_index, count)
    made.usage_tokens = usage
    made.end(1.0, outcome, code, retry)
    return made


def test_the_same_seed_offers_the_same_load_and_another_seed_another():
    load = BenchLoad(requests=50, rate=10.0, cancel_share=0.5, seed=7)
    assert list(load.planned_requests()) == list(load.planned_requests())
    assert list(load.planned_requests()) != list(
        BenchLoad(requests=50, rate=10.0, cancel_share=0.5, seed=8).planned_requests()
    )


def test_lengths_stay_inside_their_range_and_reach_both_ends():
    drawn = {
        item.options["max_output_tokens"]
        for item in BenchLoad(requests=500, output_lengths=LengthRange(low=3, high=6)).planned_requests()
    }
    assert drawn == {3, 4, 5, 6}


def test_arrivals_of_a_rate_are_ordered_and_near_it():
    items = list(BenchLoad(requests=2_000, rate=50.0).planned_requests())
    assert all(earlier.send_at <= later.send_at for earlier, later in itertools.pairwise(items))
    assert items[-1].send_at == pytest.approx(2_000 / 50.0, rel=0.1)


def test_no_two_prompts_begin_alike():
    prompts = [item.prompt for item in BenchLoad(requests=200).planned_requests()]
    assert len({prompt.split()[0] for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(
    ("chunks", "errors"),
    [
        (((0.1, 0, 1), (0.2, 1, 2)), 0),
        (((0.1, 0, 1), (0.2, 2, 1)), 1),  # token 1 is missing
        (((0.1, 0, 2), (0.2, 1, 1)), 1),  # token 1 is duplicated
        (((0.1, 1, 1),), 1),  # token 0 is missing
    ],
)
def test_missing_and_doubled_tokens_are_counted(chunks, errors):
    assert transcript(0, chunks=chunks).index_errors == errors


def test_a_difference_between_usage_and_received_tokens_is_an_error():
    assert transcript(0, usage=3).index_errors == 0
    assert transcript(0, usage=4).index_errors == 1


def test_sheds_cancels_and_failures_are_counted_separately():
    figures = report_of(
        [
            transcript(0),
            transcript(1, outcome=CANCELLED),
            transcript(2, outcome="QUEUE_FULL", code="RESOURCE_EXHAUSTED", chunks=(), retry=1.5),
            transcript(3, outcome="QUEUE_FULL", code="RESOURCE_EXHAUSTED", chunks=()),
            transcript(4, outcome="CONNECTION_LOST", code="UNAVAILABLE", chunks=()),
        ],
        wall_s=2.0,
        cpu_s={"edge": 0.5},
        slo=Slo(),
    )
    assert (figures["completed"], figures["cancelled"], figures["shed"], figures["failures"]) == (1, 1, 2, 1)
    assert figures["shed_by_reason"] == {"QUEUE_FULL": 2}
    assert figures["shed_without_retry_after"] == 1
    assert figures["failures_by_reason"] == {"CONNECTION_LOST": 1}
    assert figures["output_tokens"] == 6
    assert figures["cpu_us_per_token_by_tier"] == {"edge": pytest.approx(0.5 / 6 * 1e6)}


def test_goodput_counts_only_requests_within_both_limits():
    slow_first, slow_rest = ((1.5, 0, 1), (1.6, 1, 1)), ((0.1, 0, 1), (0.5, 1, 1))
    transcripts = [transcript(0), transcript(1, chunks=slow_first), transcript(2, chunks=slow_rest)]
    assert report_of(transcripts, wall_s=1.0, cpu_s={}, slo=Slo(ttft=1.0, tpot=0.2))["goodput_requests_per_s"] == 1.0


def test_quantiles_interpolate():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([5.0], 0.99) == 5.0


@pytest.mark.parametrize("text", ["", "0", "a", "5:4", "1:b", "-3"])
def test_an_invalid_length_is_rejected_with_an_example(text):
    with pytest.raises(click.BadParameter, match=r"64 or 16:128|two numbers"):
        parse_lengths(text)
