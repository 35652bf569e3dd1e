"""The core of the endpoint picker: order, admission, placement and slots."""

import pytest

from penstock.picker.endpoints.endpoint import EndpointLimits, EndpointState
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.endpoints.load import EndpointLoad
from penstock.picker.errors import NoEndpoint
from penstock.picker.picking.pick import PickRequest, Usage
from penstock.picker.picking.picker import EndpointPicker, PickLimits
from penstock.picker.requests.prefix import prefix_hashes
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.errors import DeadlineUnreachable, Evicted, QueueFull
from penstock.queue.policies.factory import PolicyConfig
from penstock.v1.inference_pb2 import Priority

INTERACTIVE, STANDARD, BATCH = (
    Priority.PRIORITY_INTERACTIVE,
    Priority.PRIORITY_STANDARD,
    Priority.PRIORITY_BATCH,
)
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
IDLE = EndpointLoad(waiting=0, running=0, kv_tokens=160_000, models=frozenset({"small"}))


def picker_of(*addresses, slots=1, max_waiting=10, targets=None, fallbacks=1, **limits):
    fleet = EndpointFleet(EndpointLimits(slots=slots, **limits))
    fleet.set_addresses(addresses, now=0.0)
    for each in addresses:
        fleet.on_load(each, IDLE, held=0, now=0.0)
    picks = PickLimits(max_waiting=max_waiting, fallbacks=fallbacks, targets=TtftTargets(targets or {}))
    return EndpointPicker(fleet, picks, PolicyConfig())


def submit(picker, now=0.0, **fields):
    return picker.submit(PickRequest(**{"prompt_tokens": 100, "max_output_tokens": 100, **fields}), now)[0]


def test_requests_spread_over_free_slots_and_the_rest_waits():
    picker = picker_of(A, B, C)
    picks = [submit(picker) for _ in range(4)]
    assert {each.destinations[0] for each in picks[:3]} == {A, B, C}
    assert not picks[3].is_decided
    assert repr(picker) == "<EndpointPicker 1 waiting, 3 slots held>"


def test_a_slot_that_is_free_goes_to_the_first_that_waits():
    picker = picker_of(A)
    running, first, second = (submit(picker) for _ in range(3))
    assert picker.withdraw(running, 1.0) == [first]
    assert first.destinations == (A,)
    assert first.waited == 1.0
    assert picker.withdraw(running, 2.0) == [], "a slot is freed once"
    assert picker.withdraw(second, 2.0) == []
    assert picker.withdraw(first, 3.0) == [], "the one that was withdrawn is not placed"
    assert (picker.waiting, picker.held) == (0, 0)


def test_a_higher_class_goes_first():
    picker = picker_of(A)
    running, batch, standard, interactive = (
        submit(picker, priority=each) for each in (STANDARD, BATCH, STANDARD, INTERACTIVE)
    )
    order = []
    while len(order) < 3:
        (placed,) = picker.withdraw(running, 1.0)
        order.append(placed)
        running = placed
    assert order == [interactive, standard, batch]


def test_tenants_share_by_their_weights():
    picker = picker_of(A, max_waiting=100)
    running = submit(picker, tenant="x")
    for _ in range(20):
        submit(picker, tenant="flood"), submit(picker, tenant="heavy", weight=3.0)
    served = []
    for _ in range(16):
        (running,) = picker.settle(running, Usage(prompt_tokens=100, output_tokens=100), 1.0)
        served.append(running.request.tenant)
    assert 11 <= served.count("heavy") <= 13


def test_the_usage_of_a_response_corrects_the_charge_of_its_tenant():
    picker = picker_of(A, max_waiting=100)
    running = submit(picker, tenant="x")
    for _ in range(10):
        submit(picker, tenant="long"), submit(picker, tenant="short")
    served = []
    for _ in range(9):
        output = 100 if running.request.tenant == "long" else 0
        (running,) = picker.settle(running, Usage(prompt_tokens=100, output_tokens=output, cached_tokens=0), 1.0)
        served.append(running.request.tenant)
    assert served.count("short") > served.count("long") >= 2


def test_only_endpoints_of_the_subset_are_chosen():
    picker = picker_of(A, B, C, slots=4)
    picks = [submit(picker, subset=frozenset({B, "10.9.9.9:1"})) for _ in range(5)]
    assert [each.destinations for each in picks[:4]] == [(B,)] * 4
    assert not picks[4].is_decided
    assert submit(picker, subset=frozenset({A, C})).destinations[0] in {A, C}
    other = submit(picker)
    assert other.is_decided, "one that waits for its subset does not hold others back"
    assert picker.withdraw(picks[0], 1.0) == [picks[4]]


@pytest.mark.parametrize("subset", [frozenset(), frozenset({"10.9.9.9:1"})])
def test_a_subset_without_a_ready_endpoint_is_an_error(subset):
    with pytest.raises(NoEndpoint):
        submit(picker_of(A), subset=subset)


def test_those_that_wait_are_rejected_once_all_their_endpoints_are_lost():
    picker = picker_of(A, B)
    submit(picker), submit(picker)
    waiting, limited = submit(picker), submit(picker, subset=frozenset({A}))
    picker.fleet.on_refused(A, 1.0)
    assert picker.on_fleet_changed(1.0) == [limited]
    assert isinstance(limited.error, NoEndpoint)
    picker.fleet.on_refused(B, 1.0)
    assert picker.on_fleet_changed(1.0) == [waiting]
    with pytest.raises(NoEndpoint):
        submit(picker)
    picker.fleet.on_load(B, IDLE, held=0, now=2.0)
    assert not submit(picker).is_decided, "the request that runs there still holds the slot"


def test_a_full_queue_rejects_and_a_higher_class_evicts():
    picker = picker_of(A, max_waiting=1)
    submit(picker)
    batch = submit(picker, priority=BATCH)
    with pytest.raises(QueueFull) as rejection:
        submit(picker, priority=BATCH)
    assert rejection.value.retry_after > 0
    interactive, decided = picker.submit(PickRequest(priority=INTERACTIVE), 0.0)
    assert decided == [batch]
    assert isinstance(batch.error, Evicted)
    assert not interactive.is_decided


def test_a_request_that_is_predicted_to_be_late_is_rejected_with_the_time_to_retry():
    picker = picker_of(A, targets={int(STANDARD): 15.0})
    running = submit(picker)
    picker.settle(running, None, 10.0)  # a slot is held for 10 s
    submit(picker, now=10.0), submit(picker, now=10.0)
    with pytest.raises(DeadlineUnreachable) as rejection:
        submit(picker, now=10.0)
    assert 4 <= rejection.value.retry_after <= 6
    assert not submit(picker, now=10.0, priority=BATCH).is_decided, "a class without a target waits"
    with pytest.raises(DeadlineUnreachable):
        submit(picker, now=10.0, priority=BATCH, time_limit=1.0)


def test_one_that_waits_too_long_is_rejected():
    picker = picker_of(A, targets={int(STANDARD): 2.0})
    submit(picker)
    waiting = submit(picker)
    assert picker.expire(1.9) == []
    assert picker.expire(2.1) == [waiting]
    assert isinstance(waiting.error, DeadlineUnreachable)
    assert picker.waiting == 0


def test_a_prompt_goes_where_its_prefix_was_placed():
    picker = picker_of(A, B, C, slots=8)
    text = b"system prompt " * 2_000
    first = submit(picker, prompt_tokens=7_000, prefix_hashes=prefix_hashes(text, "small"))
    again = submit(picker, prompt_tokens=7_010, prefix_hashes=prefix_hashes(text + b"more" * 20, "small"))
    assert again.destinations[0] == first.destinations[0]
    assert again.new_tokens < 1_500
    other = submit(picker, prompt_tokens=7_010, prefix_hashes=prefix_hashes(text, "another model"))
    assert other.destinations[0] != first.destinations[0]


def test_a_prompt_is_not_expected_in_a_cache_for_ever():
    picker = picker_of(A, B, slots=8, down_after=10_000.0)
    hashes = prefix_hashes(b"system prompt " * 2_000, "small")
    submit(picker, prompt_tokens=7_000, prefix_hashes=hashes)
    for now, is_expected in ((300.0, True), (599.0, True), (600.0, False)):
        picker.fleet.expire(now)
        expected, _ = picker.fleet.pool.prefix_index.expected_prefix(hashes)
        assert bool(expected) == is_expected


def test_the_endpoint_that_served_has_the_slot():
    picker = picker_of(A, B)
    pick = submit(picker, subset=frozenset({A}))
    waiting = submit(picker, subset=frozenset({A}))
    assert picker.on_served(pick, B, 1.0) == [waiting]
    assert [picker.fleet.endpoints[each].held for each in (A, B)] == [1, 1]
    assert picker.on_served(pick, "10.9.9.9:1", 1.0) == []
    picker.settle(pick, None, 2.0)
    assert picker.fleet.endpoints[B].held == 0


def test_fallbacks_are_other_usable_endpoints():
    picker = picker_of(A, B, C, fallbacks=5)
    picker.fleet.on_refused(C, 0.0)
    pick = submit(picker)
    assert sorted(pick.destinations) == [A, B]


def test_a_request_without_a_body_needs_no_slot():
    picker = picker_of(A)
    submit(picker)
    assert submit(picker, needs_slot=False).destinations == (A,)
    assert picker.held == 1


def test_requests_of_others_take_slots():
    picker = picker_of(A, slots=4)
    own = [submit(picker) for _ in range(2)]
    picker.fleet.on_load(A, EndpointLoad(waiting=0, running=5), held=2, now=1.0)
    assert picker.fleet.endpoints[A].worker.profile.slots == 1
    assert not submit(picker).is_decided
    picker.fleet.on_load(A, EndpointLoad(waiting=0, running=2), held=2, now=2.0)
    assert len(picker.on_fleet_changed(2.0)) == 1
    assert len(own) == 2


@pytest.mark.parametrize("load", [EndpointLoad(waiting=5, running=2), EndpointLoad(0, 2, kv_usage=0.99)])
def test_a_server_that_queues_or_is_short_of_memory_gets_no_more(load):
    picker = picker_of(A, B, slots=8)
    on_a = [submit(picker, subset=frozenset({A})) for _ in range(2)]
    picker.fleet.on_load(A, load, held=2, now=1.0)
    assert {submit(picker).destinations[0] for _ in range(4)} == {B}
    waiting = submit(picker, subset=frozenset({A}))
    assert not waiting.is_decided
    assert len(on_a) == 2


def test_an_endpoint_without_a_load_is_used_for_half_of_its_slots():
    picker = picker_of(A, slots=4, stale_after=2.0, down_after=5.0)
    endpoint = picker.fleet.endpoints[A]
    picker.fleet.expire(2.5)
    assert endpoint.state is EndpointState.DEGRADED
    assert [submit(picker, now=2.5).is_decided for _ in range(3)] == [True, True, False]
    picker.fleet.on_answer(A, 4.0)
    picker.fleet.expire(8.0)
    assert endpoint.state is EndpointState.DEGRADED, "it answers, although its load cannot be read"
    picker.fleet.expire(9.5)
    assert endpoint.state is EndpointState.DOWN


def test_an_endpoint_is_not_used_before_its_first_answer():
    fleet = EndpointFleet(EndpointLimits(down_after=5.0))
    fleet.set_addresses([A], now=0.0)
    picker = EndpointPicker(fleet, PickLimits(), PolicyConfig())
    with pytest.raises(NoEndpoint):
        submit(picker)
    assert fleet.endpoints[A].state is EndpointState.PENDING
    fleet.on_answer(A, 1.0)
    assert submit(picker).destinations == (A,)


def test_a_removed_endpoint_gets_no_more_and_its_requests_run_to_their_end():
    picker = picker_of(A, B)
    picks = [submit(picker), submit(picker)]
    on_a = next(each for each in picks if each.destinations[0] == A)
    picker.fleet.set_addresses([B], now=1.0)
    assert picker.withdraw(on_a, 2.0) == []
    assert not submit(picker).is_decided
    picker.fleet.set_addresses([A, B], now=3.0)
    picker.fleet.on_load(A, IDLE, held=0, now=3.0)
    assert picker.on_fleet_changed(3.0)


def test_a_prompt_beyond_the_memory_of_every_endpoint_is_placed_as_the_server_rejects_it_itself():
    picker = picker_of(A, slots=2)
    pick = submit(picker, prompt_tokens=10_000_000)
    assert pick.destinations == (A,)
    assert picker.fleet.endpoints[A].worker.free_blocks == 0
    picker.withdraw(pick, 1.0)
    assert picker.fleet.endpoints[A].worker.free_blocks == 10_000


def test_sizes_are_learned_from_usage():
    picker = picker_of(A)
    for _ in range(100):
        pick = submit(picker, prompt_bytes=6_000, prompt_tokens=1_500, max_output_tokens=50)
        picker.settle(pick, Usage(prompt_tokens=3_000, output_tokens=20), 1.0)
    assert 2.0 <= picker.estimates.bytes_per_token < 2.2
    assert submit(picker, max_output_tokens=50).ticket.predicted_output == 20
