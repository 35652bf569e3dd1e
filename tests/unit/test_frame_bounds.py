"""What tiers send and keep stays bounded, whatever values within their types their peers have sent."""

import math
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration

from dispatch_mesh import MODEL
from penstock.chassis.durations import nanos_left, nanos_since, seconds_of, set_seconds
from penstock.chassis.errors import Unavailable
from penstock.edge.request import limits
from penstock.mesh.limits import bounds
from penstock.mesh.limits.violations import violation_of
from penstock.mesh.v1.queue_pb2 import Credit as CreditFrame
from penstock.mesh.v1.queue_pb2 import Head, PoolStats, PrefillBacklog, SlotRelease, VirtualTime
from penstock.mesh.v1.scheduler_pb2 import LoadReport, Profile, RunningLease
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, PoisonReport, Ticket
from penstock.queue import effects as queue_effects
from penstock.queue.frames import credit_of, head_message, pool_stats_of, to_edge, to_scheduler
from penstock.queue.models.model_queue import MAX_QUEUES
from penstock.queue.policies.policy import ClassBacklog, SortKey
from penstock.queue.schedulers import MAX_UNLISTED_MODELS
from penstock.queue.validation import TicketInvalid, check_ticket
from penstock.scheduler.credit.credit_books import MAX_BOOKS
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import GrantCredit
from penstock.scheduler.frames import to_queue
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.poison import MAX_REPORTS, PoisonReports
from queue_tickets import ShardDriver

UINT32_MAX = 2**32 - 1


def assert_within(frame):
    assert violation_of(getattr(frame, frame.WhichOneof("frame"))) is None


@pytest.mark.parametrize("seconds", [math.inf, 1e300, -1.0, -math.inf, math.nan])
def test_no_duration_leaves_the_range_of_frames(seconds):
    duration = Duration()
    set_seconds(duration, seconds)
    assert violation_of(duration) is None
    assert 0 <= seconds_of(duration) <= bounds.SPAN_S
    assert violation_of(Unavailable("", retry_after=seconds).failure()) is None
    assert 0 <= nanos_left(1e200, 0.0) <= bounds.REQUEST_NANOS
    assert 0 <= nanos_since(-1e200, 0.0) <= bounds.REQUEST_NANOS


def scheduler():
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"))
    dispatcher.on_queue_connected("q")
    dispatcher.on_queue_connected("q2")
    return dispatcher


LARGEST = {
    "slots": bounds.SLOTS,
    "kv_blocks": bounds.KV_BLOCKS,
    "block_size": bounds.BLOCK_SIZE,
    "context_length": bounds.TOKENS,
}
TYPE_MAXIMA = {"slots": UINT32_MAX, "kv_blocks": UINT32_MAX, "block_size": UINT32_MAX, "context_length": bounds.TOKENS}


@pytest.mark.parametrize("size", [LARGEST, TYPE_MAXIMA], ids=["in range", "in type"])
def test_a_scheduler_sends_frames_within_the_ranges_whatever_its_workers_report(size):
    """The first of these sums once ended the scheduler inside a tick."""
    dispatcher = scheduler()
    effects = []
    for name in ("a", "b", "c"):
        leases = [RunningLease(lease_id=f"{name}{n}", kv_blocks=size["kv_blocks"], ticket_id="t") for n in range(2)]
        leases = leases if name == "a" else []
        profile = Profile(model="m", card_digest="d", running=leases, **size)
        effects += dispatcher.on_worker_attached(name, name, f"{name}:1", profile)
        longest = Duration(seconds=bounds.SPAN_S)
        report = LoadReport(
            running=UINT32_MAX,
            free_kv_blocks=UINT32_MAX,
            prefill_backlog_tokens=UINT32_MAX,
            step_time=longest,
            decode_step_time=longest,
            tokens_per_second=bounds.RATE,
            prefill_tokens_per_second=5e-324,
            steps=bounds.STEPS,
            seconds_per_prefill_token=bounds.TOKEN_SECONDS,
            max_step_tokens=UINT32_MAX,
        )
        dispatcher.on_load_report(name, report)
        dispatcher.fleet[name].unstarted_tokens = 2**40
    key = "m@d"
    for queue in ("q", "q2"):
        head = Head(
            model=key,
            waiting=UINT32_MAX,
            class_waiting=UINT32_MAX,
            priority=1,
            virtual_tokens=bounds.VIRTUAL_TOKENS,
            waiting_tokens=bounds.TOTAL_TOKENS,
            waiting_prompt_tokens=bounds.TOTAL_TOKENS,
            tokens=UINT32_MAX,
            tickets_per_virtual_token=bounds.RATE,
        )
        effects += dispatcher.on_head(queue, head, 1.0)
    dispatcher.on_queue_connected("q3")  # which receives the sum of the two heads
    for now in (1.0, 2.0, 3.0):
        effects += dispatcher.tick(now)
    frames = [to_queue(each) for each in effects]
    for frame in frames:
        assert_within(frame)
    assert {"credit", "pool_stats", "virtual_times", "catalog"} <= {frame.WhichOneof("frame") for frame in frames}
    (entry,) = dispatcher.fleet.catalog()
    assert entry.slots_hint == min(3 * size["slots"], UINT32_MAX)


def test_credit_is_limited_to_its_fields():
    huge = GrantCredit("q", MODEL, 2**70, 2**70, math.inf, 2**70, express_tickets=2**70)
    assert_within(to_queue(huge))


def test_a_shard_sends_frames_within_the_ranges():
    key = SortKey(1, math.inf, -1e18, math.inf)
    backlog = ClassBacklog(2**70, 2**70, math.inf)
    head = queue_effects.Head("s", "m", 2**70, 2**70, key, 2**33, waiting_prompt_tokens=2**70, backlog=backlog)
    message = head_message(replace(head, tokens=UINT32_MAX), 1e9)
    assert violation_of(message) is None
    assert message.waiting == UINT32_MAX
    assert_within(to_edge(queue_effects.Queued("e", "t", 2**70, math.inf)))
    assert_within(to_scheduler(queue_effects.CreditReturned("s", "m", 2**70), 0.0))


def test_merged_catalogs_of_schedulers_are_limited():
    shard = ShardDriver()
    for name in ("s1", "s2"):
        shard.book.on_scheduler_connected(name, 0.0)
        entry = CatalogEntry(model="m", worker_address="w:1", workers_hint=UINT32_MAX, slots_hint=UINT32_MAX)
        shard.book.on_catalog(name, [entry], 0.0)
    (merged,) = shard.book.schedulers.catalog()
    assert (merged.workers_hint, merged.slots_hint) == (UINT32_MAX, UINT32_MAX)


def test_a_shard_predicts_from_any_statistics_within_the_ranges():
    shard = ShardDriver()
    shard.connect()
    longest = Duration(seconds=bounds.SPAN_S)
    for rate in (0.0, 5e-324, bounds.RATE):
        stats = PoolStats(
            model="m",
            tokens_per_second=rate,
            prefill_tokens_per_second=rate,
            next_worker_backlog_tokens=bounds.TOTAL_TOKENS,
            step_time=longest,
            running=UINT32_MAX,
            slots=UINT32_MAX,
            workers=UINT32_MAX,
            decode_step_time=longest,
            seconds_per_prefill_token=-bounds.TOKEN_SECONDS if rate else bounds.TOKEN_SECONDS,
            slot_releases=[SlotRelease(after=longest, ended_leases=UINT32_MAX)] * 2,
            max_step_tokens=UINT32_MAX,
            prefill_backlogs=[PrefillBacklog(worker_id="w", tokens=UINT32_MAX)],
        )
        assert violation_of(stats) is None
        scheduler_key = next(iter(shard.book.schedulers))
        shard.book.on_pool_stats(scheduler_key, "m", pool_stats_of(stats, shard.now))
        for effect in shard.enqueue(f"t{rate}"):
            if isinstance(effect, queue_effects.Queued | queue_effects.Shed):
                assert_within(to_edge(effect))


# Growth.


def test_a_scheduler_cannot_make_a_shard_keep_state_for_any_number_of_models():
    shard = ShardDriver()
    shard.connect()
    key = next(iter(shard.book.schedulers))
    session = shard.book.schedulers[key]
    for number in range(2 * MAX_QUEUES):
        model = f"made-up-{number}"
        shard.book.on_virtual_times(key, [VirtualTime(model=model, priority=1, virtual_tokens=1.0)])
        shard.book.on_pool_stats(key, model, pool_stats_of(PoolStats(model=model), 0.0))
        shard.book.on_credit(key, model, credit_of(CreditFrame(tickets=1)), 0.0, return_unused=False)
    listed = len(session.catalog)
    for kept in (session.credits, session.pool_stats, session.remote_backlogs):
        assert len(kept) <= MAX_UNLISTED_MODELS + listed
    assert len(list(shard.book.model_queues)) <= MAX_QUEUES
    entry = CatalogEntry(model="new", worker_address="w:1", workers_hint=1)
    shard.book.on_catalog(key, [entry], 0.0)
    shard.book.on_credit(key, "new", credit_of(CreditFrame(tickets=3)), 0.0, return_unused=False)
    assert session.credits["new"].tickets == 3, "models of the catalog always have room"


def test_models_that_leave_the_catalog_are_forgotten_in_time():
    shard = ShardDriver()
    shard.connect()
    key = next(iter(shard.book.schedulers))
    session = shard.book.schedulers[key]
    for number in range(3 * MAX_UNLISTED_MODELS):
        entry = CatalogEntry(model=f"version-{number}", worker_address="w:1", workers_hint=1)
        shard.book.on_catalog(key, [entry], 0.0)
        shard.book.on_credit(key, entry.model, credit_of(CreditFrame(tickets=1)), 0.0, return_unused=False)
    assert len(session.credits) <= MAX_UNLISTED_MODELS + 1
    assert f"version-{number}" in session.credits


def test_a_shard_cannot_make_a_scheduler_keep_books_for_any_number_of_models():
    dispatcher = scheduler()
    dispatcher.on_worker_attached("w", "w", "w:1", Profile(model="m", card_digest="d", **LARGEST))
    for number in range(2 * MAX_BOOKS):
        dispatcher.on_head("q", Head(model=f"made-up-{number}", waiting=1, priority=1), 1.0)
    dispatcher.tick(1.0)
    assert len(dispatcher.credit_books) <= MAX_BOOKS
    assert "m@d" in dispatcher.credit_books
    dispatcher.tick(2.0)


def test_a_worker_has_one_number_per_lease():
    dispatcher = scheduler()
    lease = RunningLease(lease_id="l", kv_blocks=1, ticket_id="t", attempt=1, queue_id="q")
    dispatcher.on_worker_attached("w", "w", "w:1", Profile(model="m", card_digest="d", running=[lease], **LARGEST))
    worker, entry = dispatcher.fleet["w"], dispatcher.leases.leases["l"]
    for number in range(1, 100):
        worker.number_lease(number, entry)
    assert list(worker.numbered_leases) == [99]


def test_poison_reports_of_very_many_addresses_do_not_displace_those_of_others():
    reports = PoisonReports()
    ttl = Duration(seconds=60)
    reports.apply("honest:1", [PoisonReport(fingerprint=1, is_confirmed=True, ttl=ttl)], 0.0)
    for number in range(40):
        made_up = [
            PoisonReport(fingerprint=10_000 * (number + 1) + n, is_confirmed=True, ttl=ttl) for n in range(1_024)
        ]
        reports.apply(f"made-up-{number}:1", made_up, 0.0)
    merged = reports.merged()
    assert len(merged) <= MAX_REPORTS
    assert 1 in {each.fingerprint for each in merged}


def test_each_address_costs_no_more_than_its_reports():
    reports = PoisonReports()
    for number in range(MAX_REPORTS + 500):
        one = PoisonReport(fingerprint=number + 1, is_confirmed=True, ttl=Duration(seconds=60))
        reports.apply(f"made-up-{number}:1", [one], 0.0)
    assert len(reports.merged()) <= MAX_REPORTS


# Legal values.


def test_what_the_edge_admits_is_within_the_ranges():
    assert limits.PROMPT_TOKENS + limits.OUTPUT_TOKENS <= bounds.TOKENS
    assert limits.RENDERED_BYTES <= bounds.TOKENS, "a token has at least a byte"
    assert limits.MODEL_NAME_BYTES <= bounds.MODEL_NAME_CHARS
    assert limits.MODEL_NAME_BYTES + 1 + bounds.DIGEST_CHARS <= bounds.MODEL_KEY_CHARS
    assert limits.REQUEST_ID_CHARS <= bounds.ID_CHARS
    assert limits.TIMEOUT_S * 1e9 <= bounds.REQUEST_NANOS


def test_a_wrong_ticket_is_named_by_the_table():
    whole = {"ticket_id": "t", "tenant_id": "a", "priority": 2, "weight": 1.0, "model": "m", "attempt": 1}
    check_ticket(Ticket(prompt_tokens=1, max_output_tokens=1, **whole))
    wrong = Ticket(prompt_tokens=UINT32_MAX, max_output_tokens=1, **whole)
    with pytest.raises(TicketInvalid, match=f"Ticket.prompt_tokens is {UINT32_MAX}; allowed: 0 to {bounds.TOKENS}"):
        check_ticket(wrong)
