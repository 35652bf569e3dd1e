"""Probes: the answer equals the outcome of an enqueue, and the shard is unchanged."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue import effects as out
from penstock.queue.admission.limits import TtftTargets
from penstock.queue.frames import to_edge
from penstock.queue.prediction.pool_stats import PoolStats
from queue_tickets import BATCH, INTERACTIVE, STANDARD, ShardDriver, only, ticket

TTFT = 1.0  # s
DEPTH = 12


def shard():
    made = ShardDriver(
        ttft_targets=TtftTargets({STANDARD: TTFT, INTERACTIVE: TTFT}, headroom=0.9), max_depth=DEPTH, max_tokens=10_000
    )
    made.connect()
    made.book.model_queues["m"].forecast.service_rate.saturated = 1_000.0
    made.book.on_pool_stats("s", "m", PoolStats(made.now, tokens_per_second=1_000.0))
    return made


def knock(shard, ticket_id, **fields):
    [answer] = shard.book.probe(ticket(ticket_id, **fields), shard.now)
    return answer


asks = st.fixed_dictionaries(
    {"tokens": st.sampled_from([20, 100, 900]), "priority": st.sampled_from([INTERACTIVE, STANDARD, BATCH])}
)


@given(st.lists(asks, max_size=20), asks, st.sampled_from(["m", "unknown"]))
def test_a_probe_predicts_the_outcome_of_the_next_enqueue(before, ask, model):
    full = shard()
    for number, each in enumerate(before):
        full.enqueue(f"t{number}", **each)
    said = knock(full, "asked", model=model, **ask)
    came = full.enqueue("asked", model=model, **ask)
    sheds = [each for each in came if isinstance(each, out.Shed) and each.ticket_id == "asked"]
    if isinstance(said, out.WouldAdmit):
        assert not sheds
    else:
        assert to_edge(said).shed == to_edge(sheds[0]).shed


@given(st.lists(asks, max_size=20), asks)
def test_a_probe_does_not_change_other_tickets(before, ask):
    asked, quiet = shard(), shard()
    for number, each in enumerate(before):
        knock(asked, "x", **ask)
        said = asked.enqueue(f"t{number}", **each), quiet.enqueue(f"t{number}", **each)
        assert [type(each) for each in said[0]] == [type(each) for each in said[1]]
    assert list(asked.book.tickets) == list(quiet.book.tickets)
    assert asked.book.model_queues.waiting == quiet.book.model_queues.waiting
    assert asked.heads() == quiet.heads()


def test_a_rejected_probe_counts_as_shed():
    full = shard()
    for number in range(20):
        full.enqueue(f"t{number}", tokens=900)
    before = full.book.counters.shed["OVERLOADED"]
    knock(full, "late", tokens=900)
    assert full.book.counters.shed["OVERLOADED"] == before + 1


def test_a_probe_evicts_no_ticket():
    full = shard()
    for number in range(DEPTH):
        full.enqueue(f"b{number}", tokens=20, priority=BATCH)
    assert isinstance(knock(full, "first", tokens=20), out.WouldAdmit)
    assert len(full.book.tickets) == DEPTH
    assert only(out.Shed, full.enqueue("first", tokens=20)).error.reason == "EVICTED"
