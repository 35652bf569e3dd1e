"""The slot release curve that a scheduler sends."""

from hypothesis import given
from hypothesis import strategies as st

from dispatch_mesh import profile_of
from penstock.chassis.durations import seconds_of
from penstock.mesh.v1.scheduler_pb2 import LoadReport
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.reports.pool_stats import (
    DEFAULT_OUTPUT_TOKENS,
    MAX_SAMPLED_WORKERS,
    slot_releases_of,
    steps_left,
)

STEP_S = 0.01


def entry_of(name="l", **fields):
    return LeaseEntry(name, "t", 1, "q", "w", "w", 2, is_started=True, **fields)


def worker_of(leases, name="w", steps=0, step=STEP_S):
    worker = Worker(name, name, "", profile_of(slots=1_000, kv_blocks=10_000), look_ahead=1)
    report = LoadReport(steps=steps)
    report.decode_step_time.FromNanoseconds(round(step * 1e9))
    worker.on_load_report(report)
    for lease_id in leases:
        worker.promise(lease_id, 2)
    return worker


def ends_of(releases):
    return [(round(seconds_of(each.after), 6), each.ended_leases) for each in releases]


def test_a_lease_ends_after_its_predicted_tokens():
    assert steps_left(entry_of(predicted_output_tokens=50, served_output_tokens=20, served_at_step=100), 100) == 30
    assert steps_left(entry_of(predicted_output_tokens=50, served_output_tokens=20, served_at_step=100), 110) == 20


def test_a_lease_without_a_token_has_its_prefill_left():
    assert steps_left(entry_of(predicted_output_tokens=50), 1_000) == 51
    assert steps_left(entry_of(), 1_000) == DEFAULT_OUTPUT_TOKENS + 1


def test_an_answer_longer_than_predicted_has_steps_left():
    left = [
        steps_left(entry_of(predicted_output_tokens=50, served_output_tokens=made), 0) for made in (49, 50, 51, 200)
    ]
    assert left == sorted(left)
    assert left[0] == 1
    assert 1 < left[-1] < 200


def test_leases_end_in_the_order_of_their_remaining_steps():
    leases = {
        str(left): entry_of(str(left), predicted_output_tokens=left, served_output_tokens=1) for left in (31, 11, 21)
    }
    found = slot_releases_of([worker_of(leases)], leases)
    assert ends_of(found) == [(0.1, 1), (0.2, 2), (0.3, 3)]


def test_workers_without_measurements_have_no_curve():
    leases = {"a": entry_of("a", predicted_output_tokens=9)}
    assert slot_releases_of([worker_of(leases, step=0.0)], leases) == []
    assert slot_releases_of([], {}) == []


def test_an_unknown_lease_has_the_default_length():
    assert ends_of(slot_releases_of([worker_of(["unknown"])], {})) == [((DEFAULT_OUTPUT_TOKENS + 1) * STEP_S, 1)]


def test_the_curve_of_many_workers_is_sampled():
    count = 10 * MAX_SAMPLED_WORKERS
    leases = {
        str(number): entry_of(str(number), predicted_output_tokens=21, served_output_tokens=1)
        for number in range(count)
    }
    found = slot_releases_of([worker_of([name], name) for name in leases], leases)
    assert ends_of(found)[-1] == (0.2, count)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=300), st.integers(0, 100))
def test_a_curve_increases_and_ends_with_all_leases(lengths, turn):
    leases = {str(name): entry_of(str(name), predicted_output_tokens=length) for name, length in enumerate(lengths)}
    points = ends_of(slot_releases_of([worker_of(leases)], leases, turn))
    assert points == sorted(points)
    assert [each[1] for each in points] == sorted({each[1] for each in points})
    assert points[-1] == (round((max(lengths) + 1) * STEP_S, 6), len(lengths))
    assert len(points) <= 25, "the frame is sent ten times a second and must be small"
