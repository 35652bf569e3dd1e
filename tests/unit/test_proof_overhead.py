"""Card lines of the overhead proof: CPU time by request and by token."""

from dataclasses import replace

from penstock.proofs.live.overhead import CONTROL_TIERS, FRONT, LOADS, STEP_S, LoadCost, overhead_lines


def cost(requests, tokens, us_by_tier, **given):
    cpu_us = {**dict.fromkeys(CONTROL_TIERS, us_by_tier), FRONT: 1_000.0 * requests}
    values = {"failed": 0, "seconds": 2.0, "ttft_s": STEP_S + 0.004, **given}
    return LoadCost(requests=requests, tokens=tokens, cpu_us=cpu_us, **values)


COSTS = {
    "light": cost(requests=100, tokens=100, us_by_tier=40_000.0),
    "light tokens": cost(requests=100, tokens=6_500, us_by_tier=72_500.0),
    "busy": cost(requests=1_000, tokens=1_000, us_by_tier=100_000.0),
    "session": cost(requests=100, tokens=6_400, us_by_tier=12_800.0),
}
REST_US = {**dict.fromkeys(CONTROL_TIERS, 1_000.0), FRONT: 9_000.0}


def line(lines, figure):
    (only,) = [each for each in lines if each.figure == figure]
    return only


def test_the_tiers_between_client_and_worker_are_judged_and_the_front_of_the_worker_is_reported():
    lines = overhead_lines(COSTS, REST_US)
    assert line(lines, "CPU of a request at 20 requests/s").measured == 1_600.0
    assert line(lines, "CPU of a request, 64 at once on a session").measured == 400.0
    assert line(lines, "requests/s, 64 at once").measured == 500.0
    assert line(lines, "CPU at rest").measured == 4.0
    assert line(lines, "of it in queue, at 20 requests/s").measured == 400.0
    front = line(lines, "beside it in the worker front, at 20 requests/s")
    assert (front.measured, front.goal) == (1_000.0, "")
    assert all(each.is_met for each in lines)


def test_a_token_costs_what_a_long_answer_takes_beyond_a_short_one():
    lines = overhead_lines(COSTS, REST_US)
    assert line(lines, "CPU of a token at 20 requests/s").measured == (4 * 72_500.0 - 4 * 40_000.0) / 6_500
    assert line(lines, "CPU of a token of a session with 64 streams").measured == 8.0
    assert line(lines, "CPU of such a token in the edge").measured == 2.0


def test_the_step_of_the_engine_is_no_delay_of_the_mesh():
    assert round(line(overhead_lines(COSTS, REST_US), "median TTFT beyond a step of the engine").measured, 6) == 4.0


def test_a_failed_request_and_a_figure_beyond_its_bound_miss():
    failed = {**COSTS, "busy": replace(COSTS["busy"], failed=1, requests=500)}
    missed = {each.figure for each in overhead_lines(failed, REST_US) if not each.is_met}
    assert missed == {"requests that failed", "CPU of a request, 64 at once on a session"}


def test_a_load_names_its_requests_in_the_order_of_their_times():
    requests = LOADS["light"].requests()
    assert [next(requests).send_at for _ in range(3)] == [0.0, 0.05, 0.1]
