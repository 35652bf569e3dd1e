"""The dispatcher by plain calls: what is offered is placed or goes back, and nothing placed is forgotten."""

import pytest

from dispatch_mesh import MODEL, START, TTL, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import CacheNews, Report, RunningLease, ServedLease
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import Catalog, Decline, Expect, GiveCredit, Place, Revoke, TellPace, TellServed
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.served import KEPT_FOR, MAY_BE_LOST


@pytest.fixture
def scheduler():
    """One shard, no worker."""
    found = Dispatcher(leases=LeaseBook(ttl=TTL, prefix="s"), look_ahead=0)
    found.queue_joined("q")
    return found


def attach(scheduler, worker="w", *, stream="", **profile):
    return scheduler.worker_attached(stream or worker, worker, f"{worker}:1", profile_of(**profile))


def offer(scheduler, name="t", *, queue="q", now=START, **ticket):
    return scheduler.offer(queue, ticket_of(name, **ticket), now)


def only(kind, effects):
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def held(scheduler, queue="q"):
    return scheduler.credits[MODEL].shards[queue].held


def space(scheduler):
    pool = scheduler.fleet.pools[MODEL]
    return pool.totals.room, pool.largest


def told(effects, kind=TellServed):
    return [
        (effect.queue, each.ticket_id, each.attempt, each.prompt_tokens, each.output_tokens, each.ended)
        for effect in effects
        if isinstance(effect, kind)
        for each in effect.tickets
    ]


def quiet(effects):
    """All but what is told of pace and service."""
    return [effect for effect in effects if not isinstance(effect, TellPace | TellServed)]


def credits_in(effects):
    return [(effect.queue, effect.tickets, effect.once) for effect in effects if isinstance(effect, GiveCredit)]


def test_a_placed_ticket_is_announced_to_its_worker_and_leased_to_its_edge(scheduler):
    attach(scheduler)
    effects = offer(scheduler, tokens=40, attempt=3)
    expect, place = only(Expect, effects), only(Place, effects)
    assert effects.index(expect) < effects.index(place)
    assert (expect.worker, place.queue, expect.lease) == ("w", "q", place.lease)
    lease = place.lease
    assert (lease.lease_id, lease.ticket_id, lease.worker_id, lease.worker_address) == ("s-1", "t", "w", "w:1")
    assert (lease.attempt, lease.ttl.seconds) == (3, TTL)
    assert repr(scheduler) == "<Dispatcher 1 workers, 1 leases, 3 promised>"


def test_a_worker_that_attaches_brings_credit_for_what_it_can_take(scheduler):
    effects = attach(scheduler, slots=2, kv_blocks=8)
    assert [entry.model for entry in only(Catalog, effects).entries] == [MODEL]
    credit = only(GiveCredit, effects)
    assert (credit.queue, credit.tickets, credit.max_tokens, credit.once) == ("q", 2, 128, False)


def test_blocks_are_promised_to_the_end_of_the_answer(scheduler):
    attach(scheduler, slots=8, kv_blocks=8)
    offer(scheduler, "a", tokens=65)
    assert scheduler.fleet["w"].promised_blocks == 5
    assert only(Decline, offer(scheduler, "b", tokens=49)).reason == "NO_CAPACITY"
    assert only(Place, offer(scheduler, "c", tokens=48)).lease.ticket_id == "c"
    assert scheduler.fleet["w"].promised_blocks == 8


def test_a_full_scheduler_says_that_nothing_fits_rather_than_that_anything_does(scheduler):
    attach(scheduler, slots=1)
    scheduler.queue_joined("q2")
    offer(scheduler)
    recall = only(GiveCredit, scheduler.head("q", Head(model=MODEL, waiting=1, priority=2)))
    assert (recall.queue, recall.tickets, recall.once, recall.max_tokens) == ("q2", 0, True, 1)


def test_a_shard_without_capacity_here_loses_its_credit_and_gets_what_there_is(scheduler):
    attach(scheduler, "killer", slots=3)
    attach(scheduler, "busy", slots=0)
    effects = offer(scheduler, avoid=["killer"])
    assert only(Decline, effects).reason == "NO_CAPACITY"
    assert credits_in(effects) == [("q", 3, False)]  # all of it, as the queue has dropped what it had


def test_a_ticket_that_no_worker_can_ever_run_is_told_so(scheduler):
    attach(scheduler, kv_blocks=8)
    declined = only(Decline, offer(scheduler, tokens=129))
    assert (declined.ticket_id, declined.reason) == ("t", "NO_WORKER")


def test_a_ticket_longer_than_the_context_can_never_run_whatever_memory_there_is(scheduler):
    attach(scheduler, kv_blocks=1_000, context=100)
    assert only(Decline, offer(scheduler, tokens=101)).reason == "NO_WORKER"


def test_a_ticket_never_goes_to_a_worker_it_avoids(scheduler):
    attach(scheduler, "killer", slots=8)
    assert only(Decline, offer(scheduler, avoid=["killer"])).reason == "NO_WORKER"
    attach(scheduler, "other", slots=1)
    assert only(Place, offer(scheduler, avoid=["killer"])).lease.worker_id == "other"
    assert only(Decline, offer(scheduler, "u", avoid=["killer"])).reason == "NO_CAPACITY"


def test_a_model_whose_last_worker_has_gone_may_be_back_in_a_moment(scheduler):
    attach(scheduler)
    scheduler.worker_lost("w")
    assert only(Decline, offer(scheduler)).reason == "NO_CAPACITY"


def test_a_lease_that_is_not_started_lapses(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler)
    assert quiet(scheduler.tick(START + TTL - 0.1)) == []
    effects = scheduler.tick(START + TTL)
    assert only(Revoke, effects) == Revoke("w", "s-1")
    assert (len(scheduler.leases), scheduler.promised_blocks, scheduler.fleet["w"].unstarted_tokens) == (0, 0, 0)


def test_a_started_lease_does_not_lapse_and_ends_when_its_worker_says_so(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler, tokens=32)
    scheduler.started("w", "s-1")
    assert quiet(scheduler.tick(START + 100)) == []
    assert (len(scheduler.leases), scheduler.leases.unstarted, scheduler.fleet["w"].unstarted_tokens) == (1, 0, 0)
    assert credits_in(scheduler.released("w", ["s-1"])) == [("q", 1, False)]
    assert (len(scheduler.leases), scheduler.promised_blocks) == (0, 0)


def test_a_worker_cannot_start_or_end_the_lease_of_another(scheduler):
    attach(scheduler, "w")
    offer(scheduler)
    attach(scheduler, "x")
    scheduler.started("x", "s-1")
    scheduler.released("x", ["s-1", "unheard-of"])
    assert (scheduler.leases.unstarted, scheduler.fleet["w"].promised_blocks) == (1, 2)


def test_a_recalled_ticket_frees_its_lease_unless_that_was_started(scheduler):
    attach(scheduler)
    offer(scheduler, "left")
    offer(scheduler, "runs")
    scheduler.started("w", "s-2")
    assert only(Revoke, scheduler.recalled("q", ["left", "runs", "unheard-of"])).lease_id == "s-1"
    assert list(scheduler.leases.leases) == ["s-2"]


def test_a_shard_cannot_recall_what_another_had_placed(scheduler):
    attach(scheduler)
    scheduler.queue_joined("q2")
    offer(scheduler, queue="q2")
    assert scheduler.recalled("q", ["t"]) == []
    assert scheduler.leases.unstarted == 1


def test_a_ticket_offered_again_gives_up_the_lease_that_nobody_started(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler)
    effects = offer(scheduler, now=START + 1)
    assert only(Revoke, effects).lease_id == "s-1"
    assert only(Place, effects).lease.lease_id == "s-2"
    assert only(Revoke, scheduler.tick(START + 1 + TTL)).lease_id == "s-2"
    assert len(scheduler.leases) == 0


def test_an_offer_of_an_attempt_that_is_over_changes_nothing(scheduler):
    attach(scheduler)
    offer(scheduler, attempt=2)
    scheduler.queue_joined("slow")
    assert only(Decline, offer(scheduler, queue="slow", attempt=1)).queue == "slow"
    assert scheduler.leases.unstarted_of("t").attempt == 2


def test_a_lost_worker_takes_along_what_runs_and_leaves_what_may_start_until_it_lapses(scheduler):
    attach(scheduler)
    offer(scheduler, "runs")
    offer(scheduler, "waits")
    scheduler.started("w", "s-1")
    assert only(Catalog, scheduler.worker_lost("w")).entries == ()
    assert list(scheduler.leases.leases) == ["s-2"]
    assert quiet(scheduler.tick(START + TTL)) == []  # there is nobody to tell
    assert len(scheduler.leases) == 0


def test_a_worker_that_comes_back_is_still_held_to_what_it_was_promised_for(scheduler):
    attach(scheduler, stream="w/1", slots=3)
    for name in ("runs", "waits", "started-meanwhile"):
        offer(scheduler, name, tokens=16)
    scheduler.started("w/1", "s-1")
    scheduler.worker_lost("w/1")
    effects = attach(scheduler, stream="w/2", slots=4, running={"s-1": 1, "s-3": 1})
    worker = scheduler.fleet["w/2"]
    assert worker.promised == {"s-1": 1, "s-2": 1, "s-3": 1}
    assert worker.unstarted_tokens == 15
    assert credits_in(effects) == [("q", 1, False)]
    scheduler.started("w/2", "s-2")
    scheduler.released("w/2", ["s-1", "s-2", "s-3"])
    assert (worker.promised_blocks, worker.unstarted_tokens, len(scheduler.leases)) == (0, 0, 0)


def test_a_worker_that_attaches_before_its_loss_is_noticed_counts_once(scheduler):
    attach(scheduler, stream="w/1", slots=2)
    attach(scheduler, stream="w/2", slots=2)
    assert [worker.key for worker in scheduler.fleet] == ["w/2"]
    assert scheduler.worker_lost("w/1") == []
    assert space(scheduler)[0] == 2


def test_leases_a_worker_brings_along_take_room_and_give_it_back(scheduler):
    attach(scheduler, slots=2, kv_blocks=8, running={"of-another-scheduler": 7})
    assert space(scheduler) == (1, 16)
    assert len(scheduler.leases) == 0
    scheduler.released("w", ["of-another-scheduler"])
    assert space(scheduler) == (2, 128)


def test_a_draining_scheduler_gives_no_credit_and_places_nothing(scheduler):
    attach(scheduler)
    scheduler.drain()
    effects = offer(scheduler)
    assert [type(effect) for effect in effects] == [Decline]
    assert effects[0].reason == "NO_CAPACITY"
    assert attach(scheduler, "w2")[1:] == []


def test_credit_is_for_the_model_of_the_workers_alone(scheduler):
    attach(scheduler, "w", model="m")
    effects = attach(scheduler, "x", model="n")
    assert [(effect.model, effect.tickets) for effect in effects if isinstance(effect, GiveCredit)] == [("n", 2)]
    assert only(Decline, offer(scheduler, model="o")).reason == "NO_CAPACITY"


def test_the_measured_rate_of_all_workers_goes_along_with_credit(scheduler):
    attach(scheduler, "w")
    scheduler.report("w", Report(tokens_per_second=100.0))
    assert only(GiveCredit, attach(scheduler, "x")).tokens_per_second == 100.0
    scheduler.report("x", Report(tokens_per_second=50.0))
    assert only(GiveCredit, attach(scheduler, "y", slots=8)).tokens_per_second == 150.0


def test_the_worker_with_the_least_prefill_before_it_gets_the_ticket(scheduler):
    attach(scheduler, "a", slots=8, kv_blocks=64)
    attach(scheduler, "b", slots=8, kv_blocks=64)
    scheduler.report("a", Report(prefill_backlog_tokens=500))
    workers = [only(Place, offer(scheduler, f"t{number}", tokens=200)).lease.worker_id for number in range(3)]
    assert workers == ["b", "b", "a"]  # a prompt of 199 counts from its lease on


def test_a_prompt_that_a_worker_has_in_its_cache_draws_its_ticket_there(scheduler):
    attach(scheduler, "a", kv_blocks=64)
    attach(scheduler, "b", kv_blocks=64)
    scheduler.cache_changed("b", CacheNews(added=[1, 2, 3], anew=True))
    scheduler.report("b", Report(prefill_backlog_tokens=40))
    assert placed_at(scheduler, "first", prefix=[1, 2, 3, 4]) == "b"
    assert scheduler.fleet["b"].unstarted_tokens == 79 - 3 * 16  # and only the rest of the prompt is in the way there
    scheduler.cache_changed("b", CacheNews(removed=[2, 3]))
    assert placed_at(scheduler, "second", prefix=[1, 2, 3, 4]) == "a"


def test_a_cache_never_draws_a_ticket_to_a_worker_that_has_no_room_or_is_avoided(scheduler):
    attach(scheduler, "a", kv_blocks=64)
    attach(scheduler, "b", kv_blocks=64, slots=1)
    scheduler.cache_changed("b", CacheNews(added=[1, 2, 3], anew=True))
    assert placed_at(scheduler, "avoids", prefix=[1, 2, 3], avoid=["b"]) == "a"
    assert placed_at(scheduler, "fills", prefix=[1, 2, 3]) == "b"
    assert placed_at(scheduler, "late", prefix=[1, 2, 3]) == "a"


def placed_at(scheduler, name, *, prefix, **ticket):
    asked = ticket_of(name, tokens=80, **ticket)
    asked.prefix_hashes.extend(prefix)
    return only(Place, scheduler.offer("q", asked, START)).lease.worker_id


def test_look_ahead_leases_one_more_than_there_are_slots():
    scheduler = Dispatcher(leases=LeaseBook(ttl=TTL, prefix="s"), look_ahead=1)
    scheduler.queue_joined("q")
    assert credits_in(attach(scheduler, slots=2)) == [("q", 3, False)]


def served(lease_id, prompt_tokens, output_tokens):
    return ServedLease(lease_id=lease_id, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def test_what_a_lease_was_served_is_told_to_the_shard_that_its_ticket_came_from(scheduler):
    attach(scheduler)
    scheduler.queue_joined("q2")
    offer(scheduler, "a", attempt=3)
    offer(scheduler, "b", queue="q2")
    scheduler.progress("w", [served("s-1", 30, 1), served("s-2", 20, 0)])
    scheduler.progress("w", [served("s-1", 31, 5), served("unheard-of", 9, 9)])
    assert told(scheduler.tick(START)) == [("q", "a", 3, 31, 5, False), ("q2", "b", 1, 20, 0, False)]
    assert told(scheduler.tick(START + 1)) == []


def test_the_end_of_a_lease_is_told_once_with_all_that_it_was_served(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.started("w", "s-1")
    scheduler.progress("w", [served("s-1", 31, 1)])
    scheduler.released("w", ["s-1"], [served("s-1", 31, 2)])
    assert told(scheduler.tick(START)) == [("q", "t", 1, 31, 2, True)]
    assert len(scheduler.served) == 0


def test_a_lease_that_lapses_is_told_to_have_ended_with_nothing_served(scheduler):
    attach(scheduler)
    offer(scheduler)
    assert told(scheduler.tick(START + TTL)) == [("q", "t", 1, 0, 0, True)]


def test_what_ran_on_a_lost_worker_is_told_to_have_ended_with_what_was_heard_of_it(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.started("w", "s-1")
    scheduler.progress("w", [served("s-1", 31, 7)])
    scheduler.worker_lost("w")
    assert told(scheduler.tick(START)) == [("q", "t", 1, 31, 7, True)]


def test_a_run_that_a_worker_brings_along_goes_on_being_told_to_its_shard(scheduler):
    profile = profile_of(slots=2)
    profile.running.append(RunningLease(lease_id="x-9", kv_blocks=2, ticket_id="t", attempt=2, queue_id="q"))
    scheduler.worker_attached("w", "w", "w:1", profile)
    assert told(scheduler.tick(START)) == [("q", "t", 2, 0, 0, False)]  # whoever lost it has said that it ended
    scheduler.progress("w", [served("x-9", 40, 8)])
    assert told(scheduler.tick(START)) == [("q", "t", 2, 40, 8, False)]
    scheduler.released("w", ["x-9"])
    assert told(scheduler.tick(START)) == [("q", "t", 2, 40, 8, True)]
    assert len(scheduler.leases) == 0


def test_a_shard_that_is_away_for_a_moment_hears_later_and_one_that_stays_away_never(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.queue_lost("q")
    assert told(scheduler.tick(START + TTL)) == []
    scheduler.queue_joined("q")
    assert told(scheduler.tick(START + TTL + 1)) == [("q", "t", 1, 0, 0, True)]
    offer(scheduler, now=START + 10)
    scheduler.queue_lost("q")
    scheduler.tick(START + 20)
    scheduler.tick(START + 20 + KEPT_FOR)
    assert len(scheduler.served) == 0


def test_an_end_that_may_have_been_lost_with_a_stream_is_told_again(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.released("w", ["s-1"])
    assert told(scheduler.tick(START)) == [("q", "t", 1, 0, 0, True)]
    scheduler.queue_lost("q")
    scheduler.queue_joined("q")
    assert told(scheduler.tick(START + 0.1)) == [("q", "t", 1, 0, 0, True)]
    assert told(scheduler.tick(START + 0.1 + MAY_BE_LOST)) == []
    scheduler.queue_lost("q")
    assert len(scheduler.served) == 0


def paces(effects):
    return [effect.pace for effect in effects if isinstance(effect, TellPace)]


def test_shards_are_told_the_pace_when_it_changes_and_once_a_second_in_any_case(scheduler):
    attach(scheduler, "a", slots=2)
    attach(scheduler, "b", slots=2)
    report = Report(running=1, prefill_backlog_tokens=70, tokens_per_second=100.0, prefill_tokens_per_second=500.0)
    report.step_time.FromMilliseconds(20)
    scheduler.report("a", report)
    slow = Report(running=2, prefill_backlog_tokens=900, tokens_per_second=50.0, prefill_tokens_per_second=500.0)
    scheduler.report("b", slow)
    pace = only(TellPace, scheduler.tick(START)).pace
    assert (pace.model, pace.tokens_per_second, pace.prefill_tokens_per_second) == (MODEL, 150.0, 500.0)
    assert (pace.running, pace.slots) == (3, 4)
    assert (pace.prefill_backlog_tokens, pace.step_time.ToMilliseconds()) == (70, 20)  # of the one that comes next
    assert paces(scheduler.tick(START + 0.9)) == []
    assert paces(scheduler.tick(START + 1.0)) == [pace]
    scheduler.report("b", Report(running=3))
    assert [each.running for each in paces(scheduler.tick(START + 1.1))] == [4]


def test_shards_are_told_when_leases_end_and_what_a_step_takes(scheduler):
    attach(scheduler, slots=2, kv_blocks=8)
    for name, answer in (("long", 40), ("short", 10)):
        ticket = ticket_of(name)
        ticket.predicted_output_tokens = answer
        scheduler.offer("q", ticket, START)
    report = Report(steps=7, prefill_token_seconds=0.001, step_tokens=300)
    report.decode_step_time.FromMilliseconds(10)
    scheduler.report("w", report)
    pace = only(TellPace, scheduler.tick(START)).pace
    assert (pace.leases, pace.room, pace.workers) == (2, 0, 1)
    assert (pace.held_tokens, pace.free_tokens) == (64, 64)
    assert (pace.prefill_token_seconds, pace.step_tokens, pace.decode_step_time.ToMilliseconds()) == (0.001, 300, 10)
    assert [(each.leases, each.after.ToMilliseconds()) for each in pace.releases] == [(1, 110), (2, 410)]
    scheduler.started("w", "s-1")
    scheduler.progress("w", [served("s-1", 31, 20)])
    report.steps = 12
    scheduler.report("w", report)
    pace = only(TellPace, scheduler.tick(START + 0.1)).pace
    assert [each.after.ToMilliseconds() for each in pace.releases] == [110, 150], "20 tokens were left five steps ago"


def test_a_shard_is_told_when_a_first_token_came(scheduler):
    attach(scheduler)
    offer(scheduler)
    first = served("s-1", 31, 1)
    first.first_token_after.FromMilliseconds(120)
    scheduler.progress("w", [first])
    [told] = only(TellServed, scheduler.tick(START)).tickets
    assert told.first_token_after.ToMilliseconds() == 120


def test_a_model_without_workers_has_no_pace_and_that_is_told_once(scheduler):
    attach(scheduler)
    scheduler.tick(START)
    scheduler.worker_lost("w")
    assert [(each.model, each.slots) for each in paces(scheduler.tick(START + 1))] == [(MODEL, 0)]
    assert paces(scheduler.tick(START + 9)) == []


def test_a_shard_that_joins_is_told_the_pace_anew(scheduler):
    attach(scheduler)
    scheduler.tick(START)
    scheduler.queue_lost("q")
    scheduler.queue_joined("q")
    assert len(paces(scheduler.tick(START + 0.1))) == 1


def test_credit_is_for_as_many_tokens_as_fit_together(scheduler):
    attach(scheduler, "a", slots=4, kv_blocks=8)
    effects = attach(scheduler, "b", slots=4, kv_blocks=8)
    assert sum(each.total_tokens for each in effects if isinstance(each, GiveCredit)) == 128
    assert scheduler.credits[MODEL].shards["q"].tokens == 256
    offer(scheduler, tokens=64)
    assert scheduler.credits[MODEL].shards["q"].tokens == 192
