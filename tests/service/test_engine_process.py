"""The engine's process through its pipe: in a thread of this process, and once in a real one."""

import socket
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager

import pytest

from penstock.worker.engine.build import build_engine
from penstock.worker.engine.host import loop
from penstock.worker.engine.host.loop import engine_main
from penstock.worker.engine.host.messages import Add, AddRejected, Cancel, EngineFatal, EngineReady, StepCompleted
from penstock.worker.engine.host.pipe import MAX_UNSENT_BYTES, HostPipe
from penstock.worker.engine.interface import FinishReason, SequenceSpec
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.simulated.step_time import StepTimeModel
from tiny_model import write_tiny_model

TIMEOUT_S = 30.0
INSTANT_STEPS = StepTimeModel(base_s=0.0, per_prefill_token_s=0.0, per_decode_seq_s=0.0)


@pytest.fixture
def folder(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny", context=256))


def options_for(model, **fields):
    return EngineOptions(
        model=model, **{"engine": "sim", "step_time": INSTANT_STEPS, "kv_blocks": 32, "dtype": "float32"} | fields
    )


class FrontEnd:
    """The worker's end, read one message at a time."""

    def __init__(self, end, options):
        self.pipe = HostPipe(end)
        self.received = []
        self.pipe.send(options)

    def send(self, message):
        self.pipe.send(message)
        self.pipe.flush(TIMEOUT_S)

    def recv(self):
        while not self.received:
            self.pipe.wait(TIMEOUT_S)
            self.received += self.pipe.receive()
        return self.received.pop(0)


@contextmanager
def engine_thread(options):
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=engine_main, args=(HostPipe(theirs),))
    thread.start()
    front = FrontEnd(ours, options)
    try:
        yield front
    finally:
        front.pipe.close()
        thread.join(timeout=TIMEOUT_S)
        assert not thread.is_alive(), "a closed pipe must end the engine"


def spec(seq_id, output=5, **fields):
    return SequenceSpec(seq_id=seq_id, token_ids=list(range(3, 20)), max_output_tokens=output, **fields)


def steps_until_finished(conn, *seq_ids):
    texts, waiting = defaultdict(list), set(seq_ids)
    while waiting:
        message = conn.recv()
        assert isinstance(message, StepCompleted), message
        for seq_id, token in zip(message.result.seq_ids, message.result.tokens, strict=True):
            texts[seq_id].append(token)
        waiting -= {done.seq_id for done in message.result.finished}
    return dict(texts)


def test_the_first_message_of_an_engine_has_its_card_and_capacity(folder):
    with engine_thread(options_for(folder)) as conn:
        ready = conn.recv()
    assert isinstance(ready, EngineReady)
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


def test_a_rejection_names_the_sequence_and_the_engine_continues(folder):
    with engine_thread(options_for(folder)) as conn:
        conn.recv()
        conn.send(Add(spec(1, output=1000)))
        rejection = conn.recv()
        conn.send(Add(spec(2)))
        assert len(steps_until_finished(conn, 2)[2]) == 5
    assert isinstance(rejection, AddRejected)
    assert (rejection.seq_id, rejection.reason) == (1, "PROMPT_TOO_LONG")
    assert rejection.metadata["context_length"] == "256"


def test_a_cancel_is_answered_by_the_next_step(folder):
    slow = StepTimeModel(base_s=0.2)  # time enough for the cancel to arrive while the next step runs
    with engine_thread(options_for(folder, step_time=slow)) as conn:
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
    with engine_thread(options_for(folder, step_time=StepTimeModel(base_s=0.02))) as conn:
        conn.recv()
        conn.send(Add(spec(1, output=2)))
        assert conn.recv().duration_s >= 0.02


def test_a_torch_engine_steps_through_the_same_pipe(folder):
    with engine_thread(options_for(folder, engine="torch", threads=1)) as conn:
        conn.recv()
        conn.send(Add(spec(1, ignore_eos=True)))
        conn.send(Add(spec(2, ignore_eos=True)))
        texts = steps_until_finished(conn, 1, 2)
    assert texts[1] == texts[2]
    assert len(texts[1]) == 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_cannot_load_is_reported_and_raised():
    with engine_thread(options_for("no-such-model")) as conn:
        fatal = conn.recv()
    assert isinstance(fatal, EngineFatal)
    assert "no-such-model is no folder" in fatal.message


def test_an_engine_process_ends_when_its_pipe_closes(folder):
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "penstock.worker.engine_host.child", str(theirs.fileno())]
        child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    try:
        front = FrontEnd(ours, options_for(folder))
        assert isinstance(front.recv(), EngineReady)
        front.send(Add(spec(1, output=200)))
        assert isinstance(front.recv(), StepCompleted)
        front.pipe.close()
        assert child.wait(TIMEOUT_S) == 0
    finally:
        child.kill()


def test_a_worker_that_does_not_read_delays_steps_only_beyond_the_buffer_and_loses_none(tmp_path):
    """In one thread: the worker reads only when the engine can do nothing except wait for it."""
    model = write_tiny_model(tmp_path / "tiny", context=60_000)
    engine, _ = build_engine(options_for(str(model), kv_blocks=8_000))
    ours, theirs = socket.socketpair()
    pipe, front = HostPipe(theirs), HostPipe(ours)
    received, unsent_at_waits = [], []

    def read_at_last(seconds=None):
        unsent_at_waits.append(len(pipe._unsent))
        received.extend(front.receive())

    pipe.wait = read_at_last
    for seq_id in range(4):
        front.send(Add(spec(seq_id, output=20_000)))
    while not unsent_at_waits:
        loop._receive_messages(pipe, engine)
        loop._step(pipe, engine)
    made = engine.batch.step
    assert min(unsent_at_waits) > MAX_UNSENT_BYTES
    assert len(received) < made
    front.send(Cancel(3))  # received at the next turn, even if the pipe is full
    while engine.has_work:
        loop._receive_messages(pipe, engine)
        loop._step(pipe, engine)
    while received[-1].result.step < engine.batch.step:
        pipe.receive()
        received += front.receive()
    assert [message.result.step for message in received] == list(range(1, engine.batch.step + 1))
    indexes = [index for message in received for seq, index in tokens_of(message) if seq == 0]
    assert indexes == list(range(20_000))
    [receipt] = [receipt for message in received for receipt in message.result.cancelled]
    assert (receipt.seq_id, receipt.output_tokens <= made + 1) == (3, True)
    assert received[-1].capacity.blocks_free == 8_000
    pipe.close(), front.close()


def tokens_of(message):
    return zip(message.result.seq_ids, message.result.indexes, strict=True)
