"""The engine's process through its pipe: in a thread of this process, and once in a real one."""

import multiprocessing
import threading
from collections import defaultdict
from contextlib import contextmanager

import pytest

from penstock.worker.engine.interface import FinishReason, SequenceSpec
from penstock.worker.engine.messages import Add, Cancel, Fatal, Ready, Refused, Stepped
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.process import engine_main
from penstock.worker.engine.step_law import StepLaw
from tiny_model import write_tiny_model

QUICK = StepLaw(base_s=0.0, per_prefill_token_s=0.0, per_decode_seq_s=0.0)


@pytest.fixture
def folder(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny", context=256))


def options_for(model, **fields):
    return EngineOptions(model=model, **{"engine": "sim", "law": QUICK, "kv_blocks": 32, "dtype": "float32"} | fields)


@contextmanager
def engine_thread(options):
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=engine_main, args=(theirs, options))
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(timeout=30)
        assert not thread.is_alive(), "a closed pipe must end the engine"
        theirs.close()


def spec(seq_id, output=5, **fields):
    return SequenceSpec(seq_id=seq_id, token_ids=list(range(3, 20)), max_output_tokens=output, **fields)


def steps_until_finished(conn, *seq_ids):
    texts, waiting = defaultdict(list), set(seq_ids)
    while waiting:
        message = conn.recv()
        assert isinstance(message, Stepped), message
        for seq_id, token in zip(message.result.seq_ids, message.result.tokens, strict=True):
            texts[seq_id].append(token)
        waiting -= {done.seq_id for done in message.result.finished}
    return dict(texts)


def test_the_engine_says_what_it_serves_before_anything_else(folder):
    with engine_thread(options_for(folder)) as conn:
        ready = conn.recv()
    assert isinstance(ready, Ready)
    assert (ready.card.name, ready.card.context_length) == ("tiny", 256)
    assert (ready.capacity.blocks_free, ready.capacity.slots_free) == (32, 32)


def test_sequences_run_to_their_end_and_leave_the_pool_full(folder):
    with engine_thread(options_for(folder)) as conn:
        conn.recv()
        conn.send(Add(spec(1)))
        conn.send(Add(spec(2)))
        texts = steps_until_finished(conn, 1, 2)
        assert [len(text) for text in texts.values()] == [5, 5]
        conn.send(Add(spec(3, output=1)))
        last = conn.recv()
    assert last.result.finished[0][:3] == (3, FinishReason.LENGTH, 1)
    assert last.capacity.blocks_free == 32


def test_a_refusal_names_the_sequence_and_the_engine_goes_on(folder):
    with engine_thread(options_for(folder)) as conn:
        conn.recv()
        conn.send(Add(spec(1, output=1000)))
        refused = conn.recv()
        conn.send(Add(spec(2)))
        assert len(steps_until_finished(conn, 2)[2]) == 5
    assert isinstance(refused, Refused)
    assert (refused.seq_id, refused.reason) == (1, "PROMPT_TOO_LONG")
    assert refused.metadata["context_length"] == "256"


def test_a_cancel_is_answered_by_the_next_step(folder):
    slow = StepLaw(base_s=0.2)  # time enough for the cancel to arrive while the next step runs
    with engine_thread(options_for(folder, law=slow)) as conn:
        conn.recv()
        conn.send(Add(spec(1, output=200)))
        first = conn.recv()
        conn.send(Cancel(1))
        later = [conn.recv()]
        while not later[-1].result.cancelled:
            later.append(conn.recv())
    assert first.result.seq_ids == [1]
    assert len(later) <= 2
    assert later[-1].result.cancelled[0].blocks_freed == 2
    assert later[-1].capacity.blocks_free == 32


def test_a_simulated_step_takes_its_time(folder):
    with engine_thread(options_for(folder, law=StepLaw(base_s=0.02))) as conn:
        conn.recv()
        conn.send(Add(spec(1, output=2)))
        assert conn.recv().took_s >= 0.02


def test_a_torch_engine_steps_through_the_same_pipe(folder):
    with engine_thread(options_for(folder, engine="torch", threads=1)) as conn:
        conn.recv()
        conn.send(Add(spec(1, ignore_eos=True)))
        conn.send(Add(spec(2, ignore_eos=True)))
        texts = steps_until_finished(conn, 1, 2)
    assert texts[1] == texts[2]
    assert len(texts[1]) == 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_cannot_load_is_told_and_raised():
    with engine_thread(options_for("no-such-model")) as conn:
        fatal = conn.recv()
    assert isinstance(fatal, Fatal)
    assert "no-such-model is no folder" in fatal.message


def test_a_process_of_its_own_ends_when_its_pipe_closes(folder):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=engine_main, args=(theirs, options_for(folder)))
    process.start()
    theirs.close()
    try:
        assert isinstance(ours.recv(), Ready)
        ours.send(Add(spec(1, output=200)))
        assert isinstance(ours.recv(), Stepped)
        ours.close()
        process.join(timeout=30)
        assert process.exitcode == 0
    finally:
        process.kill()
