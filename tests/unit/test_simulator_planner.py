"""The order that forecasts each choice: it knows what is served and what will be, and keeps services level."""

from penstock.queue.policies.policy import Fit
from penstock.simulator.baselines.planner import Planner
from penstock.simulator.baselines.rollout import Lane, Rollout, Size
from penstock.simulator.mesh.engine import Run
from penstock.simulator.scenario import WorkerKind
from queue_tickets import ticket

SMALL = WorkerKind(slots=4, kv_blocks=64)


def anything(_):
    return Fit.NOW


def came(name, number, tenant, prompt=16, output=16):
    found = ticket(name, tenant_id=tenant, arrival=number)
    found.min_prompt_tokens, found.min_output_tokens = prompt, output
    return found


def planner(kind=SMALL):
    return Planner(200.0, 64.0, lambda: 0.0, kind)


def size(prompt, output):
    return Size(prompt, output, -(-(prompt + output) // 16), 1.0)


def serve(order, taken, run_id):
    """Let a ticket that was taken be served to its end."""
    run = Run(run_id, taken.tenant_id, taken.min_prompt_tokens, taken.min_output_tokens, taken.min_output_tokens)
    run.first = 0
    for step in range(run.output):
        run.last = step if step == run.output - 1 else run.last
        order.stepped([run], step)


def test_the_tenant_that_was_served_less_goes_first():
    order = planner()
    order.push(came("a0", 0, "a", output=100))
    serve(order, order.take(anything), 1)
    order.push(came("a1", 1, "a"))
    order.push(came("b0", 2, "b"))
    order._sample()
    order._ranges[("a", "b")] = (0.0, 0.0)
    assert order.take(anything).ticket_id == "b0"


def test_a_tenant_s_tickets_go_in_their_order_also_when_one_is_given_back():
    order = planner()
    for number in range(3):
        order.push(came(f"a{number}", number, "a"))
    first = order.take(anything)
    order.push(first)
    assert [order.take(anything).ticket_id for _ in range(3)] == ["a0", "a1", "a2"]
    assert order.load == (0, 0)
    assert order.take(anything) is None


def test_room_is_kept_for_a_tenant_far_behind_whose_ticket_does_not_fit_yet():
    order = planner(WorkerKind(slots=2, kv_blocks=40))
    for number in range(2):
        order.push(came(f"a{number}", number, "a", prompt=100, output=100 + 200 * number))
    running = order.take(anything)
    order.push(came("large", 3, "b", prompt=300, output=300))
    order._ranges[("a", "b")] = (-4_000.0, 0.0)
    order._tenants["a"].service += 4_000.0
    too_large = {"large": Fit.LATER}
    assert running.ticket_id == "a0"
    assert order.take(lambda each: too_large.get(each.ticket_id, Fit.NOW)) is None
    assert order.load.tickets == 2


def test_a_ticket_that_is_withdrawn_is_not_taken():
    order = planner()
    gone = came("a0", 0, "a")
    order.push(gone)
    order.remove(gone)
    order.remove(gone)
    assert (order.take(anything), order.load) == (None, (0, 0))


def test_a_forecast_gives_what_falls_free_to_the_least_served():
    lanes = [Lane(500.0, iter([size(16, 16)] * 9)), Lane(0.0, iter([size(16, 16)] * 9))]
    rollout = Rollout(lanes, free_kv_blocks=2, free_slots=1, ahead=16.0)
    rollout.unevenness(100.0)
    assert lanes[0].service == 500.0
    assert lanes[1].service == 6 * 16 + 2.0 * 100


def test_a_forecast_that_keeps_room_starts_nothing_before_the_one_that_it_is_kept_for():
    lanes = [Lane(0.0, iter([size(16, 16)] * 9)), Lane(0.0, iter([size(80, 80)]))]
    rollout = Rollout(lanes, free_kv_blocks=5, free_slots=2, ahead=16.0, held=1)
    rollout.run(0, size(40, 40), 40, has_begun=True)
    rollout.free_kv_blocks += 5
    assert rollout._next() is None
    rollout.unevenness(50.0)
    assert lanes[1].service == 80 + 2.0 * 10


def test_services_that_stay_level_are_even():
    lanes = [Lane(0.0, iter([])), Lane(0.0, iter([]))]
    rollout = Rollout(lanes, free_kv_blocks=64, free_slots=4, ahead=16.0)
    for place in range(2):
        rollout.start(place, size(16, 200))
    assert rollout.unevenness(100.0) == 0
