"""The contract of every engine, as plain functions that any Python with the engine can run.

`python engine_contract.py MODEL` runs them against a real vLLM in a Python that has it, and this folder and services/
on its path. Each function is given a `Subject`, whose engine is idle and may have run other sequences before.
"""

import itertools
import json
import sys
import traceback

from engine_subject import PROMPT, SAMPLED, Subject, indexes_of, raised_error, tokens_of
from form_contract import FORM_CONTRACT
from penstock.worker.engine.batching.errors import PromptTooLong, StartInvalid
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, FinishReason, SamplingParams


def steps_are_numbered_and_tokens_are_indexed(subject):
    first, second = subject.add(max_output_tokens=3), subject.add(PROMPT[:7], max_output_tokens=5)
    results = subject.run_to_end()
    steps = [each.step for each in results]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert indexes_of(results, first) == [0, 1, 2]
    assert indexes_of(results, second) == [0, 1, 2, 3, 4]
    ends = {done.seq_id: done for each in results for done in each.finished}
    assert (ends[first].reason, ends[first].output_tokens) == (FinishReason.LENGTH, 3)
    assert (ends[second].reason, ends[second].output_tokens) == (FinishReason.LENGTH, 5)
    assert not any(each.cancelled for each in results)


def a_stop_id_is_the_last_token(subject):
    whole = subject.text()
    stop = whole[3]
    seq_id = subject.add(stop_ids=frozenset({stop}))
    results = subject.run_to_end()
    assert tokens_of(results, seq_id) == whole[: whole.index(stop) + 1]
    [done] = [done for each in results for done in each.finished]
    assert done[:3] == (seq_id, FinishReason.STOP, whole.index(stop) + 1)


def the_eos_token_ends_a_sequence_unless_ignored(subject):
    if not subject.uses_model_scores:
        return
    for eos_id in subject.eos_ids:
        to_end = SamplingParams(logit_bias=((eos_id, 90.0),))
        assert subject.text(sampling=to_end, ignore_eos=False) == [eos_id]
        assert subject.text(sampling=to_end, ignore_eos=True, max_output_tokens=3) == [eos_id] * 3


def the_same_request_has_the_same_text(subject):
    assert subject.text() == subject.text()
    drawn = subject.text(sampling=SAMPLED, seed=11)
    assert subject.text(sampling=SAMPLED, seed=11) == drawn
    if subject.uses_model_scores:
        assert subject.text(sampling=SAMPLED, seed=12) != drawn


def a_resumed_greedy_text_continues_identically(subject):
    whole = subject.text()
    seq_id = subject.add([*PROMPT, *whole[:3]], emitted=3, max_output_tokens=5)
    results = subject.run_to_end()
    assert indexes_of(results, seq_id) == [3, 4, 5, 6, 7]
    assert tokens_of(results, seq_id) == whole[3:]
    assert results[-1].finished[0].output_tokens == 5


def a_resumed_sampled_text_continues_at_its_index(subject):
    whole = subject.text(sampling=SAMPLED, seed=3)
    seq_id = subject.add([*PROMPT, *whole[:3]], emitted=3, max_output_tokens=5, sampling=SAMPLED, seed=3)
    results = subject.run_to_end()
    assert indexes_of(results, seq_id) == [3, 4, 5, 6, 7]
    if subject.resumes_draws:
        assert tokens_of(results, seq_id) == whole[3:]


def penalties_count_all_output_including_earlier_runs(subject):
    if not subject.uses_model_scores:
        return
    plain = subject.text(max_output_tokens=24)
    for penalty in (
        SamplingParams(frequency_penalty=2.0),
        SamplingParams(presence_penalty=2.0),
        SamplingParams(repetition_penalty=1.8),
    ):
        whole = subject.text(sampling=penalty, max_output_tokens=24)
        assert whole != plain
        resumed = [*PROMPT, *whole[:10]]
        assert subject.text(resumed, emitted=10, max_output_tokens=14, sampling=penalty) == whole[10:]


def biases_and_constraints_restrict_the_output(subject):
    if not subject.uses_model_scores:
        return
    assert subject.text(sampling=SamplingParams(logit_bias=((77, 90.0),)), max_output_tokens=3) == [77] * 3
    allowed = subject.text(constraint=AllowedTokens(frozenset({50, 51, 52})))
    assert set(allowed) <= {50, 51, 52}
    choices = ((60, 61, 62), (60, 70, 71))
    held = {"constraint": AllowedChoices(choices), "ignore_eos": False}
    chosen = subject.text(**held)
    assert tuple(chosen[:3]) in choices
    assert len(chosen) == 4
    assert chosen[3] in subject.eos_ids
    assert subject.text([*PROMPT, *chosen[:1]], emitted=1, **held) == chosen[1:]


def logprobs_are_returned_on_request(subject):
    with_logprobs = subject.add(sampling=SamplingParams(logprobs=True))
    silent = subject.add()
    for result in subject.run_to_end():
        for seq_id, logprob in zip(result.seq_ids, result.logprobs, strict=True):
            assert logprob == 0.0 if seq_id == silent else logprob <= 0.0
            assert not subject.uses_model_scores or seq_id != with_logprobs or logprob < 0.0


def likeliest_tokens_are_returned_on_request(subject):
    counts = {subject.add(sampling=SamplingParams(logprobs=True, top_logprobs=count)): count for count in (1, 4)}
    counts |= {subject.add(): 0, subject.add(sampling=SamplingParams(logprobs=True)): 0}
    for result in subject.run_to_end():
        for place, (seq_id, token, logprob) in enumerate(
            zip(result.seq_ids, result.tokens, result.logprobs, strict=True)
        ):
            top = result.likeliest.get(place, ((), ()))
            assert len(top[0]) == len(top[1]) == counts[seq_id]
            assert list(top[1]) == sorted(top[1], reverse=True)
            if counts[seq_id]:  # a greedy token is the likeliest
                assert top[0][0] == token
                assert abs(top[1][0] - logprob) < 1e-4


def the_next_step_reports_a_cancel_and_computes_nothing_for_it(subject):
    cancelled, running = subject.add(max_output_tokens=40), subject.add(max_output_tokens=6)
    before = [subject.engine.step() for _ in range(3)]
    assert subject.engine.cancel(cancelled)
    assert not subject.engine.cancel(cancelled)
    results = subject.run_to_end()
    [receipt] = results[0].cancelled
    assert (receipt.seq_id, receipt.output_tokens) == (cancelled, len(tokens_of(before, cancelled)))
    assert receipt.blocks_freed >= 1
    assert tokens_of(results, cancelled) == []
    assert len(tokens_of([*before, *results], running)) == 6
    assert not subject.engine.cancel(cancelled)
    assert not subject.engine.cancel(running)


def a_cancel_of_the_only_sequence_is_reported(subject):
    seq_id = subject.add()
    assert subject.engine.cancel(seq_id)
    assert subject.engine.has_work
    [result] = subject.run_to_end()
    assert (result.cancelled[0][:2], result.tokens) == ((seq_id, 0), [])


def capacity_is_returned_in_full(subject):
    idle = subject.engine.capacity()
    assert (idle.running, idle.waiting, idle.prefill_backlog_tokens, idle.blocks_promised) == (0, 0, 0, 0)
    assert (idle.slots_free, idle.blocks_free) == (idle.slots, idle.blocks)
    subject.add()
    waiting = subject.engine.capacity()
    assert (waiting.waiting, waiting.prefill_backlog_tokens) == (1, len(PROMPT))
    final = -(-(len(PROMPT) + 8) // idle.block_size)
    assert waiting.blocks_promised == final
    while not subject.engine.step().tokens:
        pass
    busy = subject.engine.capacity()
    assert (busy.running, busy.waiting, busy.slots_free) == (1, 0, idle.slots - 1)
    assert idle.blocks - busy.blocks_free == -(-len(PROMPT) // idle.block_size)
    assert busy.blocks_promised == final - (idle.blocks - busy.blocks_free)
    subject.run_to_end()
    after = subject.engine.capacity()
    assert (after.slots_free, after.blocks_free, after.blocks_promised) == (idle.slots, idle.blocks, 0)


def step_counts_add_up(subject):
    prompts = [PROMPT, PROMPT[:11], PROMPT[:3]]
    for prompt in prompts:
        subject.add(prompt, max_output_tokens=4)
    results = subject.run_to_end()
    assert sum(each.prefill_tokens for each in results) == sum(map(len, prompts))
    assert sum(each.decode_seqs for each in results) == 3 * 3
    assert not any(each.preempted for each in results)


def each_sequence_is_admitted_once_with_its_tenants_cached_prefix(subject):
    prompt = [100 + place % 150 for place in range(80)]
    cached = []
    for salt in (b"one", b"one", b"two", b"", b""):
        seq_id = subject.add(prompt, max_output_tokens=2, cache_salt=salt)
        results = subject.run_to_end()
        [admitted] = [each for result in results for each in result.admitted]
        [done] = [each for result in results for each in result.finished]
        assert (admitted.seq_id, admitted.cached_tokens) == (seq_id, done.cached_tokens)
        assert sum(each.prefill_tokens for each in results) == 80 - done.cached_tokens
        cached.append(done.cached_tokens)
    assert cached[0] == cached[2] == cached[3] == cached[4] == 0
    assert 32 <= cached[1] < 80


def sequences_without_a_slot_wait_and_all_finish(subject):
    slots = subject.engine.capacity().slots
    ids = [subject.add(PROMPT[:5], max_output_tokens=6) for _ in range(slots + 3)]
    results = [subject.engine.step()]
    now = subject.engine.capacity()
    assert (now.running <= slots, now.waiting >= 3) == (True, True)
    results += subject.run_to_end()
    assert [len(tokens_of(results, seq_id)) for seq_id in ids] == [6] * (slots + 3)
    assert sorted(done.seq_id for each in results for done in each.finished) == ids


def invalid_sequences_are_rejected_and_discarded(subject):
    known = subject.add()
    assert raised_error(lambda: subject.add(max_output_tokens=100_000), PromptTooLong).metadata
    subject.seq_ids = itertools.chain([known], subject.seq_ids)
    raised_error(subject.add, StartInvalid)
    raised_error(lambda: subject.add(PROMPT, emitted=len(PROMPT)), StartInvalid)
    raised_error(lambda: subject.add(PROMPT, max_output_tokens=0), StartInvalid)
    results = subject.run_to_end()
    assert {seq_id for each in results for seq_id in each.seq_ids} == {known}


CONTRACT = (
    steps_are_numbered_and_tokens_are_indexed,
    a_stop_id_is_the_last_token,
    the_eos_token_ends_a_sequence_unless_ignored,
    the_same_request_has_the_same_text,
    a_resumed_greedy_text_continues_identically,
    a_resumed_sampled_text_continues_at_its_index,
    penalties_count_all_output_including_earlier_runs,
    biases_and_constraints_restrict_the_output,
    logprobs_are_returned_on_request,
    likeliest_tokens_are_returned_on_request,
    the_next_step_reports_a_cancel_and_computes_nothing_for_it,
    a_cancel_of_the_only_sequence_is_reported,
    capacity_is_returned_in_full,
    step_counts_add_up,
    each_sequence_is_admitted_once_with_its_tenants_cached_prefix,
    sequences_without_a_slot_wait_and_all_finish,
    invalid_sequences_are_rejected_and_discarded,
    *FORM_CONTRACT,
)


def main(model: str) -> None:
    """Print one line per promise; the exit status is the number of broken ones."""
    from penstock.worker.engine.build import build_engine
    from penstock.worker.engine.options import EngineOptions

    more = json.dumps({"max_model_len": 256, "enforce_eager": True})
    # On a CPU, vLLM 0.32 fails if it computes a prompt in parts whose output is drawn with a seed.
    token_budget = 1_024
    engine, card = build_engine(
        EngineOptions(
            engine="vllm",
            model=model,
            dtype="float32",
            kv_blocks=48,
            slots=4,
            threads=1,
            token_budget=token_budget,
            vllm_args=more,
        )
    )
    assert card.enforces_forms
    subject = Subject(engine, resumes_draws=False, eos_ids=card.eos_ids, card=card)
    broken = 0
    for promise in CONTRACT:
        try:
            promise(subject)
            outcome = "kept"
        except Exception:  # noqa: BLE001 - the other promises are checked as well
            outcome = "BROKEN"
            broken += 1
            traceback.print_exc()
            subject.run_to_end()
        sys.stdout.write(f"{outcome} {promise.__name__}\n")
        sys.stdout.flush()
    sys.exit(broken)


if __name__ == "__main__":
    main(sys.argv[1])
