"""Small modules of the queue: throughput, availability, frames, validation, settings."""

import pytest

from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.config import ConfigError, load
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue.config import QueueConfig
from penstock.queue.models.availability import Availability, ModelAvailability
from penstock.queue.policies.factory import PolicyConfig, TenantPolicy
from penstock.queue.policies.ticket_order import TicketOrder
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.ticket import from_frame, to_frame
from penstock.queue.validation import TicketInvalid, check_ticket
from penstock.v1.inference_pb2 import PRIORITY_STANDARD
from queue_tickets import MODEL_TIMEOUT_S, START_UNIX_S, WARM_UP_S, ticket


def a_frame(**fields):
    whole = {
        "ticket_id": "t",
        "tenant_id": "acme",
        "priority": PRIORITY_STANDARD,
        "weight": 1.0,
        "model": "m",
        "prompt_tokens": 10,
        "max_output_tokens": 5,
        "attempt": 1,
    }
    return Ticket(**whole | fields)


def test_a_ticket_is_offered_unchanged():
    frame = a_frame(
        time_left_nanos=9_000_000_000,
        age_nanos=123_456_789,
        attempt=2,
        prefix_hashes=[2**64 - 1, 0, 7],
        avoid_workers=["w1", "w2"],
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        fingerprint=2**64 - 1,
        may_have_run=True,
        readmitted=True,
    )
    back = to_frame(from_frame(frame, "e", START_UNIX_S), START_UNIX_S + 1.5)
    assert back.time_left_nanos == pytest.approx(7_500_000_000, abs=1_000)  # a float in s is exact to a microsecond
    assert back.age_nanos == pytest.approx(1_623_456_789, abs=1_000)
    back.time_left_nanos, back.age_nanos = frame.time_left_nanos, frame.age_nanos
    assert back == frame


@pytest.mark.parametrize(
    "name",
    ["ticket_id", "tenant_id", "priority", "weight", "model", "prompt_tokens", "max_output_tokens", "attempt"],
)
def test_a_ticket_without_a_required_field_is_invalid(name):
    frame = a_frame()
    frame.ClearField(name)
    with pytest.raises(TicketInvalid, match=name) as found:
        check_ticket(frame)
    assert found.value.reason == "TICKET_INVALID"


@pytest.mark.parametrize(
    "fields",
    [
        {"time_left_nanos": 49 * 3600 * 10**9},
        {"age_nanos": 2**64 - 1},
        {"prefix_hashes": range(65)},
        {"avoid_workers": [str(n) for n in range(17)]},
        {"weight": -1.0},
        {"priority": 9},
    ],
)
def test_a_ticket_beyond_the_limits_of_the_protocol_is_invalid(fields):
    check_ticket(a_frame())
    with pytest.raises(TicketInvalid, match=next(iter(fields))):
        check_ticket(a_frame(**fields))


def test_a_constant_throughput_is_measured_from_the_start():
    throughput, now = Throughput(), START_UNIX_S
    for _ in range(600):
        throughput.record(50, now)
        now += 0.1
        if now - START_UNIX_S > 2:
            assert throughput.tokens_per_second(now) == pytest.approx(500, rel=0.06)


def test_throughput_is_unknown_during_the_warm_up():
    throughput = Throughput()
    assert throughput.tokens_per_second(START_UNIX_S) == 0
    throughput.record(50, START_UNIX_S)
    assert throughput.tokens_per_second(START_UNIX_S + 0.5) == 0


def test_throughput_decays_without_tickets():
    throughput = Throughput()
    for number in range(100):
        throughput.record(50, START_UNIX_S + number / 10)
    assert throughput.tokens_per_second(START_UNIX_S + 70) < 5


def test_availability_distinguishes_lost_from_unknown_models():
    availability = ModelAvailability(timeout=MODEL_TIMEOUT_S, warm_up=WARM_UP_S, started_at=START_UNIX_S)
    availability.update({"m"}, START_UNIX_S + 1)
    assert availability.availability_of("m", START_UNIX_S + 1) is Availability.SERVED
    assert availability.availability_of("new", START_UNIX_S + 1) is Availability.AWAITED
    assert availability.availability_of("x", START_UNIX_S + WARM_UP_S) is Availability.UNKNOWN
    availability.update({"other"}, START_UNIX_S + 100)
    assert availability.availability_of("m", START_UNIX_S + 101) is Availability.AWAITED
    assert availability.pop_timed_out(START_UNIX_S + 100 + MODEL_TIMEOUT_S) == ["new", "m"]
    assert availability.availability_of("m", START_UNIX_S + 100 + MODEL_TIMEOUT_S) is Availability.UNKNOWN


def test_no_model_is_awaited_after_the_timeout():
    availability = ModelAvailability(timeout=MODEL_TIMEOUT_S, warm_up=WARM_UP_S, started_at=START_UNIX_S)
    assert availability.availability_of("m", START_UNIX_S + WARM_UP_S + 1) is Availability.AWAITED
    assert availability.availability_of("n", START_UNIX_S + MODEL_TIMEOUT_S) is Availability.UNAVAILABLE


def test_availability_timeouts_exclude_stalls():
    availability = ModelAvailability(
        timeout=MODEL_TIMEOUT_S, warm_up=WARM_UP_S, started_at=START_UNIX_S, clock=StallFreeClock(0.5)
    )
    availability.update({"m", "n"}, START_UNIX_S)
    availability.update({"n"}, START_UNIX_S + 0.1)
    resumed_at = START_UNIX_S + 2 * MODEL_TIMEOUT_S
    assert availability.pop_timed_out(resumed_at) == []
    assert availability.availability_of("m", resumed_at) is Availability.AWAITED
    assert availability.availability_of("new", resumed_at) is Availability.AWAITED  # it may not be reported yet
    polls = (resumed_at + poll / 4 for poll in range(8 * int(MODEL_TIMEOUT_S)))
    given_up = {model: now for now in polls for model in availability.pop_timed_out(now)}
    assert given_up == {"m": resumed_at + MODEL_TIMEOUT_S - 0.5, "new": resumed_at + MODEL_TIMEOUT_S}


def test_a_model_that_returns_is_served():
    availability = ModelAvailability(timeout=MODEL_TIMEOUT_S, warm_up=WARM_UP_S, started_at=START_UNIX_S)
    availability.update({"m"}, START_UNIX_S)
    availability.update(set(), START_UNIX_S + 50)
    availability.update({"m"}, START_UNIX_S + 55)
    assert availability.pop_timed_out(START_UNIX_S + 500) == []
    assert availability.availability_of("m", START_UNIX_S + 500) is Availability.SERVED


@pytest.mark.parametrize(
    "setting",
    [
        *("MAX_DEPTH=0", "MAX_TOKENS=0", "UNAVAILABLE_MODEL_TIMEOUT=-1", "WARM_UP=-1", "RECENT_LEASE_TTL=-1"),
        *("MIN_CLASS_SHARE=1", "AGEING_RATE=0", "AGEING_BOUND=-1", "DEFAULT_DEADLINE=0"),
    ],
)
def test_invalid_settings_are_rejected(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match=f"PENSTOCK_QUEUE_{name} must"):
        load(QueueConfig, "queue", {f"PENSTOCK_QUEUE_{name}": value})


def test_the_policy_follows_the_settings():
    chosen = {"TENANT_POLICY": "none", "TICKET_ORDER": "token_aware", "AGEING_BOUND": "3", "MIN_CLASS_SHARE": "0.1"}
    config = load(QueueConfig, "queue", {f"PENSTOCK_QUEUE_{name}": value for name, value in chosen.items()})
    assert config.policy == PolicyConfig(
        TenantPolicy.NONE, TicketOrder.TOKEN_AWARE, min_class_share=0.1, ageing_bound=3.0
    )
    assert load(QueueConfig, "queue", {}).policy == PolicyConfig()


def test_shared_strings_are_interned():
    first, second = (from_frame(a_frame(ticket_id=each), "e", START_UNIX_S) for each in "ab")
    assert first.tenant_id is second.tenant_id
    assert first.model is second.model
    assert not hasattr(ticket("a"), "__dict__")
