import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.mesh.prefill_rank import BATCH_RANK, DEFAULT_RANK, EXPRESS_RANK
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.errors import PromptTooLong, StartInvalid
from penstock.worker.engine.batching.policy import (
    MAX_YIELDING_STEPS,
    OVERTAKEN_OLDEST_FACTOR,
    ContinuousBatching,
    StaticBatching,
    Yielding,
)
from penstock.worker.engine.interface import (
    FinishReason,
    SequenceAdmitted,
    SequenceCancelled,
    SequenceFinished,
    SequenceSpec,
)

EOS = 9


def batch_of(*, blocks=64, block_size=4, slots=4, batching=None, context=64):
    return Batch(
        pool=BlockPool(blocks, block_size),
        policy=batching or ContinuousBatching(token_budget=16),
        slots=slots,
        context_length=context,
        eos_ids=frozenset({EOS}),
    )


def spec(seq_id, prompt=4, output=4, **fields):
    return SequenceSpec(seq_id=seq_id, token_ids=list(range(100, 100 + prompt)), max_output_tokens=output, **fields)


def step(batch, token=1):
    plan = batch.plan()
    count = len(plan.sampled)
    return batch.commit(plan, [token] * count, [0.0] * count)


def run_out(batch, limit=500):
    results = []
    while batch.has_work:
        results.append(step(batch))
        assert len(results) < limit, batch
    return results


def test_a_sequence_prefills_then_decodes_to_its_length():
    batch = batch_of()
    batch.add(spec(1, prompt=4, output=3))
    results = run_out(batch)
    assert [(result.prefill_tokens, result.decode_seqs) for result in results] == [(4, 0), (0, 1), (0, 1)]
    assert [result.indexes for result in results] == [[0], [1], [2]]
    assert results[-1].finished == [SequenceFinished(1, FinishReason.LENGTH, 3, 0)]
    assert repr(batch) == "<Batch step 3: 0 running, 0 waiting, <BlockPool 0/64 used, 0 cached>>"


def test_an_end_of_sequence_id_is_emitted_and_ends_it():
    batch = batch_of()
    batch.add(spec(1))
    result = step(batch, token=EOS)
    assert result.tokens == [EOS]
    assert result.finished == [SequenceFinished(1, FinishReason.STOP, 1, 0)]


def test_ignore_eos_continues_and_still_ends_at_stop_ids():
    batch = batch_of()
    batch.add(spec(1, ignore_eos=True, stop_ids=frozenset({7})))
    assert step(batch, token=EOS).finished == []
    assert step(batch, token=7).finished == [SequenceFinished(1, FinishReason.STOP, 2, 0)]


def test_a_resumed_sequence_numbers_its_tokens_on():
    batch = batch_of()
    batch.add(spec(1, prompt=6, output=2, emitted=2))
    assert [result.indexes for result in run_out(batch)] == [[2], [3]]


def test_sequences_join_between_the_decodes_of_others():
    batch = batch_of()
    batch.add(spec(1))
    step(batch)
    batch.add(spec(2, prompt=3))
    result = step(batch)
    assert (result.decode_seqs, result.prefill_tokens) == (1, 3)
    assert result.admitted == [SequenceAdmitted(2, 0)]
    assert result.seq_ids == [1, 2]


def test_a_long_prompt_is_chunked_beside_decodes_under_the_budget():
    batch = batch_of(batching=ContinuousBatching(token_budget=8))
    batch.add(spec(1, output=9))
    step(batch)
    batch.add(spec(2, prompt=20))
    chunks = [(result.decode_seqs, result.prefill_tokens) for result in (step(batch), step(batch), step(batch))]
    assert chunks == [(1, 7), (1, 7), (1, 6)]


def test_a_short_prompt_overtakes_a_long_prefill_which_still_progresses():
    batch = batch_of(batching=ContinuousBatching(token_budget=8, oldest_share=0.25))
    batch.add(spec(1, prompt=40))
    step(batch)
    batch.add(spec(2, prompt=6))
    plan = batch.plan()
    assert [(part.sequence.spec.seq_id, part.count) for part in plan.prefills] == [(1, 2), (2, 6)]


def test_express_prompts_go_before_shorter_ones_and_the_oldest_keeps_part_of_its_share():
    batch = batch_of(batching=ContinuousBatching(token_budget=16, oldest_share=1.0))
    batch.add(spec(1, prompt=40))
    step(batch)
    batch.add(spec(2, prompt=6))
    batch.add(spec(3, prompt=20, prefill_rank=EXPRESS_RANK))
    chunks = [{part.sequence.spec.seq_id: part.count for part in batch.plan().prefills}]
    assert chunks == [{1: 2, 3: 14}]


def test_the_oldest_express_prompt_has_the_guaranteed_share():
    left = ContinuousBatching(token_budget=64, oldest_share=0.25).split_prefill([500, 300, 90], 0, [1, 0, 0])
    assert left == [2, 15, 47]
    assert ContinuousBatching(token_budget=64, oldest_share=0.25).split_prefill([300, 90], 0, [0, 0]) == [16, 48]


@given(st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=9), st.integers(0, 40))
def test_no_other_prompt_exceeds_the_oldest_share_while_an_express_one_lacks_tokens(prompts, decodes):
    policy = ContinuousBatching(token_budget=32)
    remaining, urgent = [tokens for tokens, _ in prompts], [is_urgent for _, is_urgent in prompts]
    ranks = [EXPRESS_RANK if is_urgent else DEFAULT_RANK for is_urgent in urgent]
    chunks = policy.split_prefill(remaining, decodes, ranks)
    assert sum(chunks) == min(sum(remaining), max(1, 32 - decodes))
    others = [chunk for chunk, is_urgent in zip(chunks[1:], urgent[1:], strict=True) if not is_urgent]
    lacks = any(flag and chunk < left for chunk, left, flag in zip(chunks, remaining, urgent, strict=True))
    assert not (lacks and any(others))
    share = policy.oldest_share * (OVERTAKEN_OLDEST_FACTOR if any(urgent) and not urgent[0] else 1)
    assert chunks[0] >= min(remaining[0], max(1, int(share * max(1, 32 - decodes))))


def test_batch_prompts_get_no_more_than_their_share_while_others_prefill():
    policy = ContinuousBatching(token_budget=64, oldest_share=0.25)
    assert policy.split_prefill([500, 90, 10], 0, [BATCH_RANK, DEFAULT_RANK, BATCH_RANK]) == [1, 63, 0]
    assert policy.split_prefill([9, 500], 0, [DEFAULT_RANK, BATCH_RANK]) == [9, 0]


def test_batch_prompts_leave_budget_while_others_may_arrive():
    batch = batch_of(batching=ContinuousBatching(token_budget=16, yielding_share=0.25))
    batch.add(spec(1, prompt=50, prefill_rank=BATCH_RANK))
    assert step(batch).prefill_tokens == 16, "none has arrived yet"
    batch.add(spec(2, prompt=3, output=1))
    assert step(batch).finished
    assert [step(batch).prefill_tokens for _ in range(3)] == [4] * 3


def test_a_batch_yields_for_a_bounded_number_of_steps():
    yielding = Yielding()
    yielding.on_added(BATCH_RANK, 1)
    assert not yielding.is_due(2)
    yielding.on_added(DEFAULT_RANK, 5)
    assert yielding.is_due(5 + MAX_YIELDING_STEPS)
    assert not yielding.is_due(6 + MAX_YIELDING_STEPS)


def test_the_backlog_that_others_wait_for_has_no_batch_prompts():
    batch = batch_of()
    batch.add(spec(1, prompt=20, prefill_rank=BATCH_RANK))
    assert batch.capacity().prefill_backlog_tokens == 0
    batch.add(spec(2, prompt=7))
    assert batch.capacity().prefill_backlog_tokens == 7
    run_out(batch)
    assert batch.capacity().prefill_backlog_tokens == 0


@pytest.mark.parametrize("decodes", [0, 3, 100])
def test_no_prefill_starves_under_a_stream_of_shorter_ones(decodes):
    policy = ContinuousBatching(token_budget=8)
    remaining, steps = 60, 0
    while remaining:
        remaining -= policy.split_prefill([remaining, 4, 4, 4], decodes)[0]
        steps += 1
        assert steps <= 60


def test_a_split_spends_the_budget_and_no_more():
    assert ContinuousBatching(token_budget=10).split_prefill([100, 3, 2], 0) == [5, 3, 2]
    assert ContinuousBatching(token_budget=10).split_prefill([2, 1], 0) == [2, 1]
    assert ContinuousBatching(token_budget=10).split_prefill([], 4) == []


def test_slots_bound_how_many_run():
    batch = batch_of(slots=2)
    for seq_id in (1, 2, 3):
        batch.add(spec(seq_id))
    step(batch)
    capacity = batch.capacity()
    assert (capacity.running, capacity.waiting, capacity.slots_free) == (2, 1, 0)
    assert len(run_out(batch)) == 7


def test_capacity_counts_blocks_that_are_promised():
    batch = batch_of(blocks=10, block_size=4)
    batch.add(spec(1, prompt=4, output=8))
    before = batch.capacity()
    assert (before.blocks_free, before.blocks_promised, before.prefill_backlog_tokens) == (10, 3, 4)
    step(batch)
    after = batch.capacity()
    assert (after.blocks_free, after.blocks_promised, after.prefill_backlog_tokens) == (9, 2, 0)


def test_cancel_takes_effect_before_the_next_step_and_reports_the_freed_blocks():
    batch = batch_of(block_size=4)
    batch.add(spec(1, prompt=6, output=9))
    batch.add(spec(2))
    step(batch)
    step(batch)
    assert batch.cancel(1)
    assert not batch.cancel(1)
    result = step(batch)
    assert result.cancelled == [SequenceCancelled(1, 2, 2)]
    assert result.seq_ids == [2]
    assert result.step == 3


def test_a_cancelled_sequence_that_never_ran_frees_nothing():
    batch = batch_of()
    batch.add(spec(1))
    batch.cancel(1)
    assert batch.has_work
    result = step(batch)
    assert (result.cancelled, result.tokens) == ([SequenceCancelled(1, 0, 0)], [])
    assert not batch.has_work


def test_cancelling_an_unknown_sequence_is_no_error():
    assert not batch_of().cancel(5)


def test_the_newest_sequence_is_preempted_when_blocks_run_out_and_all_complete():
    batch = batch_of(blocks=5, block_size=2)
    for seq_id in (1, 2):
        batch.add(spec(seq_id, prompt=2, output=6))
    results = run_out(batch)
    assert [seq_id for result in results for seq_id in result.preempted] == [2]
    assert [done.seq_id for result in results for done in result.finished] == [1, 2]
    indexes = [
        index for result in results for seq, index in zip(result.seq_ids, result.indexes, strict=True) if seq == 2
    ]
    assert indexes == [0, 1, 2, 3, 4, 5]
    assert batch.pool.used == 0


def test_a_preempted_sequence_is_prefill_backlog_again():
    batch = batch_of(blocks=5, block_size=2)
    for seq_id in (1, 2):
        batch.add(spec(seq_id, prompt=2, output=6))
    while not step(batch).preempted:
        assert batch.capacity().prefill_backlog_tokens in {0, 4}
    capacity = batch.capacity()
    assert (capacity.running, capacity.waiting) == (1, 1)
    assert capacity.prefill_backlog_tokens == len(batch.waiting[0].ids)


def test_a_prompt_waits_until_each_running_sequence_could_still_grow():
    batch = batch_of(blocks=4, block_size=4)
    batch.add(spec(1, prompt=8, output=8))
    step(batch)
    batch.add(spec(2, prompt=8, output=1))
    assert step(batch).admitted == []
    assert batch.capacity().waiting == 1


def test_tenants_share_prefixes_only_with_themselves():
    batch = batch_of(block_size=4)
    hits = {}
    for seq_id, salt in enumerate([b"a", b"a", b"b", b"", b""]):
        batch.add(spec(seq_id, prompt=10, output=1, cache_salt=salt))
        hits[seq_id] = run_out(batch)[-1].finished[0].cached_tokens
    assert hits == {0: 0, 1: 8, 2: 0, 3: 0, 4: 0}


def planned(batch):
    """The slices of the next step: (seq_id, start, count) of each."""
    plan = batch.plan()
    batch.commit(plan, [1] * len(plan.sampled), [0.0] * len(plan.sampled))
    return [(part.sequence.spec.seq_id, part.start, part.count) for part in plan.slices]


def test_completions_that_come_together_prefill_their_prompt_once_and_hold_it_once():
    batch = batch_of(block_size=4)
    for seq_id in (1, 2, 3):
        batch.add(spec(seq_id, prompt=10, output=3, cache_salt=b"one request"))
    assert planned(batch) == [(1, 0, 10)]
    assert batch.pool.used == 2 + 3  # two full blocks for all, the third, partly filled, one for each
    assert batch.capacity().prefill_backlog_tokens == 4
    assert planned(batch) == [(1, 10, 1), (2, 8, 2), (3, 8, 2)]
    assert [done.cached_tokens for result in run_out(batch) for done in result.finished] == [0, 8, 8]


def test_a_prompt_of_whole_blocks_and_one_token_waits_for_its_blocks_before_it_decodes():
    batch = batch_of(block_size=4, batching=ContinuousBatching(token_budget=4))
    for seq_id in (1, 2):
        batch.add(spec(seq_id, prompt=9, output=3, cache_salt=b"a"))
    steps = [planned(batch) for _ in range(4)]
    assert steps == [[(1, 0, 4)], [(1, 4, 4)], [(1, 8, 1), (2, 8, 1)], [(1, 9, 1), (2, 9, 1)]]


def test_a_sequence_that_waits_for_a_cancelled_prefill_continues_it_for_all_others():
    batch = batch_of(block_size=4, batching=ContinuousBatching(token_budget=6))
    for seq_id, prompt in ((1, 20), (2, 12), (3, 20)):
        batch.add(spec(seq_id, prompt=prompt, output=2, cache_salt=b"a"))
    assert planned(batch) == [(1, 0, 6)]
    batch.cancel(1)
    assert planned(batch) == [(2, 4, 6)]  # the first block is there, the second was half done
    assert planned(batch) == [(2, 10, 2), (3, 8, 4)]


def test_another_tenants_sequence_does_not_wait_for_a_shared_prefill():
    batch = batch_of(block_size=4, batching=ContinuousBatching(token_budget=8, oldest_share=0.5))
    for seq_id in (1, 2):
        batch.add(spec(seq_id, prompt=40, cache_salt=b"a"))
    batch.add(spec(3, prompt=4))
    assert planned(batch) == [(1, 0, 4), (3, 0, 4)]


def test_a_fully_cached_prompt_still_computes_its_last_token():
    batch = batch_of(block_size=4)
    for seq_id in (1, 2):
        batch.add(spec(seq_id, prompt=8, output=1, cache_salt=b"a"))
        last = run_out(batch)[-1]
    assert last.finished[0].cached_tokens == 4
    assert last.prefill_tokens == 4


def test_a_static_batch_admits_no_sequence_until_all_have_ended():
    batch = batch_of(batching=StaticBatching(), slots=2)
    batch.add(spec(1, output=1))
    batch.add(spec(2, output=4))
    batch.add(spec(3, output=1))
    results = [step(batch) for _ in range(5)]
    assert [[entry.seq_id for entry in result.admitted] for result in results] == [[1, 2], [], [], [], [3]]
    assert batch.capacity().slots_free == 2


def test_a_finished_member_of_a_static_batch_keeps_its_slot():
    batch = batch_of(batching=StaticBatching(), slots=2)
    batch.add(spec(1, output=1))
    batch.add(spec(2, output=4))
    step(batch)
    assert batch.capacity().running == 1
    assert batch.capacity().slots_free == 0


def test_a_sequence_beyond_the_context_is_rejected_with_its_numbers():
    with pytest.raises(
        PromptTooLong, match="60 prompt tokens and up to 5 output tokens exceed the context of 64"
    ) as no:
        batch_of(context=64).add(spec(1, prompt=60, output=5))
    assert no.value.metadata["context_length"] == "64"


def test_a_sequence_beyond_the_pool_is_rejected_with_its_numbers():
    batch = batch_of(blocks=3, block_size=4)
    with pytest.raises(PromptTooLong, match="need 4 KV blocks and the worker has 3"):
        batch.add(spec(1, prompt=8, output=5))
    batch.add(spec(1, prompt=8, output=4))
    assert run_out(batch)[-1].finished[0].output_tokens == 4


@pytest.mark.parametrize(
    "fields",
    [{"prompt": 0}, {"output": 0}, {"emitted": 4}, {"emitted": -1}],
    ids=["empty", "nothing", "all", "negative"],
)
def test_contradictory_fields_are_rejected(fields):
    with pytest.raises(StartInvalid):
        batch_of().add(spec(1, **fields))


def test_an_id_in_use_is_rejected():
    batch = batch_of()
    batch.add(spec(1))
    with pytest.raises(StartInvalid, match="sequence 1 already exists"):
        batch.add(spec(1))


def test_settings_that_cannot_work_are_rejected():
    with pytest.raises(ValueError, match="slots"):
        batch_of(slots=0)
    with pytest.raises(ValueError, match="token_budget"):
        ContinuousBatching(token_budget=0)
